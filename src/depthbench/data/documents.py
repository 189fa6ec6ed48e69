"""Formats: the documents inside one file.

A plain file is one document; a line of a `.jsonl` file is one, and so is a row of a `.parquet` file. `.gz` and `.zst` are unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from depthbench.data import long_text
from depthbench.data.long_text import Document, NotTextError
from depthbench.data.parquet import rows
from depthbench.data.unpack import PACKED, UNPACKING, HashedFile, broken, open_hashed, unpacked
from depthbench.errors import UserError

__all__ = ["ENDINGS", "PARQUET", "TEXT_COLUMN", "NotTextError", "ending", "open_hashed", "read_documents"]

TEXT_COLUMN = "text"
PARQUET = ".parquet"


@dataclass(frozen=True)
class Content:
    """A file's content, unpacked; where it is, how to open it again, and the key of its text if it has rows."""

    stream: BinaryIO
    path: Path
    again: Callable[[], BinaryIO]
    column: str


def plain(content: Content) -> Iterator[Document]:
    """The whole stream as one document, byte for byte: no newline is changed."""
    held = content.stream.read(long_text.HELD)
    if len(held) == long_text.HELD:
        yield long_text.long_text(held, content.stream, content.path, content.again)
    elif b"\0" in held:  # also finds UTF-16 text, which often happens to be valid UTF-8
        raise NotTextError("binary: contains NUL bytes")
    else:
        try:
            yield held.decode()
        except UnicodeDecodeError as error:
            raise NotTextError(f"not UTF-8 at byte {error.start}") from error


def json_lines(content: Content) -> Iterator[Document]:
    """The text of each line, in order. Blank lines hold no document. A damaged line is an error, never passed over."""
    path, number = content.path, 0
    try:
        for number, line in enumerate(content.stream, 1):  # noqa: B007 (a broken stream is reported with the line reached)
            if line.strip():
                yield line_text(line, content.column)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}: {error}") from error
    except UNPACKING as error:
        raise UserError(f"{path}, line {number + 1}: {broken(error)}") from error


def line_text(line: bytes, key: str) -> str:
    """The document in one JSON line. Raises `ValueError` saying what is wrong with it."""
    text = line.decode("utf-8-sig")  # editors put a byte order mark before the first line
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        raise ValueError(f'must be an object with the key "{key}", got {type(row).__name__}')
    if key not in row:
        raise ValueError(f'no key "{key}"; found: {", ".join(map(repr, sorted(row))) or "none"}')
    document = row[key]
    if not isinstance(document, str):
        raise ValueError(f'"{key}" must be a string, got {type(document).__name__}')
    try:
        document.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'"{key}" holds half of a surrogate pair, which no UTF-8 text can') from error
    return document


READERS: dict[str, Callable[[Content], Iterator[Document]]] = {
    ".txt": plain,
    ".md": plain,
    ".py": plain,
    ".jsonl": json_lines,
}
ENDINGS = (*READERS, *(end + packing for packing in PACKED for end in READERS), PARQUET)


def ending(name: str) -> str | None:
    """Which of `ENDINGS` the file name has (in any case), or None."""
    return next((end for end in ENDINGS if name.lower().endswith(end)), None)


def read_documents(raw: HashedFile, path: Path, column: str = TEXT_COLUMN) -> Iterator[Document]:
    """The documents of the file `path`, opened as `raw`, which has been read to its end when the iterator ends.

    `column` names the text of a row. Raises `NotTextError` before the first document if a plain file is no text, and `UserError`
    naming the file (and line) if it cannot be read, is damaged, or has no such column.
    """
    end = ending(path.name) or ""
    packing = next((packing for packing in PACKED if end.endswith(packing)), "")
    try:
        if end == PARQUET:
            yield from rows(raw, path, column)
            return
        content = Content(unpacked(raw, packing), path, lambda: unpacked(open_hashed(path), packing), column)
        yield from READERS[end.removesuffix(packing)](content)
    except UNPACKING as error:
        raise UserError(f"{path}: {broken(error)}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
