"""Formats: the documents inside one file. A plain file is one document; a line of a `.jsonl` file is one. `.gz` is unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from depthbench.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12

TEXT_KEY = "text"
UNPACKING = (gzip.BadGzipFile, EOFError, zlib.error)  # what a damaged gzip file raises


class NotTextError(Exception):
    """The file holds no text: its bytes are not UTF-8, or it contains NUL bytes. The message says which."""


def plain(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The whole stream as one document, byte for byte: no newline is changed."""
    content = stream.read()
    if b"\0" in content:  # also finds UTF-16 text, which often happens to be valid UTF-8
        raise NotTextError("binary: contains NUL bytes")
    try:
        yield content.decode()
    except UnicodeDecodeError as error:
        raise NotTextError(f"not UTF-8 at byte {error.start}") from error


def json_lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The `text` of each line, in order. Blank lines hold no document. A damaged line is an error, never passed over."""
    number = 0
    try:
        for number, line in enumerate(stream, 1):  # noqa: B007 (a broken gzip stream is reported with the line reached)
            if line.strip():
                yield line_text(line)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}: {error}") from error
    except UNPACKING as error:
        raise UserError(f"{path}, line {number + 1}: broken gzip ({error})") from error


def line_text(line: bytes) -> str:
    """The document in one JSON line. Raises `ValueError` saying what is wrong with it."""
    text = line.decode("utf-8-sig")  # editors put a byte order mark before the first line
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        raise ValueError(f'must be an object with the key "{TEXT_KEY}", got {type(row).__name__}')
    if TEXT_KEY not in row:
        raise ValueError(f'no key "{TEXT_KEY}"; found: {", ".join(map(repr, sorted(row))) or "none"}')
    document = row[TEXT_KEY]
    if not isinstance(document, str):
        raise ValueError(f'"{TEXT_KEY}" must be a string, got {type(document).__name__}')
    try:
        document.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'"{TEXT_KEY}" holds half of a surrogate pair, which no UTF-8 text can') from error
    return document


READERS: dict[str, Callable[[BinaryIO, Path], Iterator[str]]] = {
    ".txt": plain,
    ".md": plain,
    ".py": plain,
    ".jsonl": json_lines,
}
ENDINGS = (*READERS, *(f"{end}.gz" for end in READERS))


def ending(name: str) -> str | None:
    """Which of `ENDINGS` the file name has (in any case), or None."""
    return next((end for end in ENDINGS if name.lower().endswith(end)), None)


class HashedFile(io.RawIOBase):
    """A file opened for reading that hashes what passes, so that the recorded hash is of the very bytes that were used."""

    def __init__(self, file: io.FileIO):
        self.file = file
        self.hash = hashlib.sha256()

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` and hash what came; 0 at the end of the file."""
        count = self.file.readinto(buffer) or 0
        self.hash.update(memoryview(buffer)[:count])
        return count

    def close(self) -> None:
        """Close the file underneath too."""
        self.file.close()
        super().close()


def open_hashed(path: Path) -> HashedFile:
    """Open `path`. Raises `UserError` if it cannot be read."""
    try:
        return HashedFile(io.FileIO(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_documents(raw: HashedFile, path: Path) -> Iterator[str]:
    """The documents of the file `path`, opened as `raw`, which has been read to its end when the iterator ends.

    Raises `NotTextError` before the first document if a plain file is no text, and `UserError` naming the file (and line) if it
    cannot be read or its gzip or JSON is damaged.
    """
    end = ending(path.name) or ""
    packed = end.endswith(".gz")
    reader = READERS[end.removesuffix(".gz")]
    stream = gzip.GzipFile(fileobj=raw, mode="rb") if packed else io.BufferedReader(raw)
    try:
        yield from reader(cast(BinaryIO, stream), path)
    except UNPACKING as error:
        raise UserError(f"{path}: broken gzip ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
