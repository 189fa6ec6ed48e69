"""Files as they lie on disk: read once, hashed on the way, and unpacked if they are packed by gzip or Zstandard."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from depthbench.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12


class BrokenZstdError(Exception):
    """The bytes are no Zstandard stream, or end in the middle of one."""


PACKED = (".gz", ".zst")
UNPACKING = (gzip.BadGzipFile, EOFError, zlib.error, BrokenZstdError)  # what a damaged file raises


class HashedFile(io.RawIOBase):
    """A file opened for reading that hashes what passes, so that the recorded hash is of the very bytes that were used."""

    def __init__(self, file: io.FileIO):
        self.file = file
        self.hash = hashlib.sha256()
        self.done = 0  # bytes read, for progress

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` and hash what came; 0 at the end of the file."""
        count = self.file.readinto(buffer) or 0
        self.hash.update(memoryview(buffer)[:count])
        self.done += count
        return count

    def close(self) -> None:
        """Close the file underneath too."""
        self.file.close()
        super().close()


class ZstdFile(io.RawIOBase):
    """What a Zstandard file, opened as `raw`, holds: one frame or several. A broken one gives all that comes before the damage."""

    def __init__(self, raw: HashedFile):
        self.raw, self.stream = raw, zstd_stream(raw)
        self.given = 0
        self.rest: tuple[bytes, BrokenZstdError] | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer`; 0 at the end. Raises `BrokenZstdError`."""
        view = memoryview(buffer).cast("B")
        if self.rest is None:
            try:
                count = int(self.stream.readinto(view))
                self.given += count
                return count
            except OSError as error:
                if error.errno is not None:  # the disk's own
                    raise
                self.rest = before_damage(self.raw, self.given), BrokenZstdError(error)
        rest, damage = self.rest
        if not rest:
            raise damage
        found, self.rest = rest[: len(view)], (rest[len(view) :], damage)
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Close the file underneath too."""
        self.raw.close()
        super().close()


def zstd_stream(raw: io.RawIOBase) -> Any:
    """The content of a Zstandard file."""
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")


def before_damage(raw: HashedFile, start: int) -> bytes:
    """What a broken Zstandard file holds from `start` on: the library drops the last of it when it finds the damage."""
    found = bytearray()
    with io.FileIO(os.fspath(raw.file.name)) as file, suppress(OSError):
        stream = zstd_stream(file)
        while start:
            start -= len(stream.read(min(start, 2**16)))
        while byte := stream.read(1):
            found += byte
    return bytes(found)


def open_hashed(path: Path) -> HashedFile:
    """Open `path`. Raises `UserError` if it cannot be read."""
    try:
        return HashedFile(io.FileIO(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def unpacked(raw: HashedFile, packing: str) -> BinaryIO:
    """The content of `raw`, packed as one of `PACKED` says or not at all."""
    if packing == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb"))
    return io.BufferedReader(ZstdFile(raw) if packing == ".zst" else raw, 2**17)


def broken(error: Exception) -> str:
    """What one of `UNPACKING` says, in words for the user."""
    return f"broken {'zstd' if isinstance(error, BrokenZstdError) else 'gzip'} ({error})"
