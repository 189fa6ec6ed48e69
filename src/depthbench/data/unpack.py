"""Files as they lie on disk: read once, hashed on the way, and unpacked if they are packed by gzip or Zstandard."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

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
    """What a Zstandard file, opened as `raw`, holds: one frame or several."""

    def __init__(self, raw: HashedFile):
        import pyarrow

        self.stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer`; 0 at the end. Raises `BrokenZstdError`."""
        try:
            return int(self.stream.readinto(buffer))
        except OSError as error:
            if error.errno is not None:  # the disk's own
                raise
            raise BrokenZstdError(error) from error


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
