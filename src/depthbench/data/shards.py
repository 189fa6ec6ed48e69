"""Token files that together are one stream: written in files of bounded size, and read through memory maps.

Where the stream is cut decides nothing: hashes and windows are those of the whole.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthbench.data.manifest import Shard
from depthbench.files import write_with

SHARD_TOKENS = 2**28
BLOCK = 2**20

Stored = NDArray[np.unsignedinteger[Any]]


class Sharded:
    """Memory maps, one after the other, as one read-only array of tokens."""

    def __init__(self, maps: Sequence[Stored]):
        self.maps = tuple(maps)
        self.dtype = self.maps[0].dtype
        self.nbytes = sum(map.nbytes for map in self.maps)
        self.ends = np.cumsum([len(map) for map in self.maps])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, start: int, out: Stored) -> None:
        """Fill `out`, shape [n], with the tokens from `start` on."""
        number = int(np.searchsorted(self.ends, start, side="right"))
        done, place = 0, start - (int(self.ends[number - 1]) if number else 0)
        while done < len(out):
            found = self.maps[number][place : place + len(out) - done]
            out[done : done + len(found)] = found
            done, number, place = done + len(found), number + 1, 0

    def windows(self, starts: NDArray[np.int64], length: int) -> Stored:
        """The windows that begin at `starts`, shape [k, length]."""
        found = np.empty((len(starts), length), dtype=self.dtype)
        for row, start in zip(found, starts.tolist(), strict=True):
            self.read(start, row)
        return found


def shard_names(split: str, tokens: int, shard_tokens: int) -> list[str]:
    """The files of a side: one as long as all fits, numbered ones otherwise."""
    count = max(1, -(-tokens // shard_tokens))
    return [f"{split}.bin"] if count == 1 else [f"{split}-{number:05d}.bin" for number in range(count)]


def shard_files(out: Path, split: str) -> list[Path]:
    """All files that are there under names of a side's shards."""
    return [path for path in (out / f"{split}.bin", *sorted(out.glob(f"{split}-?????.bin"))) if path.exists()]


def write_shards(
    out: Path, split: str, paths: Sequence[Path], tokens: int, width: int, shard_tokens: int
) -> tuple[str, list[Shard]]:
    """Write the tokens of `paths`, each of `width` bytes, to the files of a side. Returns the sha256 of all, and the files."""
    names = shard_names(split, tokens, shard_tokens)
    total, shards = hashlib.sha256(), []
    with closing(Joined(paths)) as source:
        for number, name in enumerate(names):
            count = min(shard_tokens, tokens - number * shard_tokens) if len(names) > 1 else tokens
            shards.append(Shard(name, count, write_shard(out / name, source, count * width, total)))
    for stray in shard_files(out, split):
        if stray.name not in names:  # of an unfinished call with another bound
            stray.unlink()
    return total.hexdigest(), shards


def write_shard(path: Path, source: Joined, size: int, total: hashlib._Hash) -> str:
    """Write the next `size` bytes of `source`, telling `total` of them too. Returns their sha256."""
    own = hashlib.sha256()

    def write(file: Any) -> None:
        left = size
        while block := source.read(min(left, BLOCK)):
            own.update(block)
            total.update(block)
            file.write(block)
            left -= len(block)

    write_with(path, write)
    return own.hexdigest()


class Joined:
    """Files, one after the other, as one stream."""

    def __init__(self, paths: Sequence[Path]):
        self.files: Iterator[Path] = iter(paths)
        self.file: io.BufferedIOBase = io.BytesIO()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none only at the end or if none are asked for."""
        while size and not (found := self.file.read(size)):
            self.file.close()
            path = next(self.files, None)
            if path is None:
                self.file = io.BytesIO()
                return b""
            self.file = open(path, "rb")  # noqa: SIM115 (closed when it has been read)
        return found if size else b""

    def close(self) -> None:
        """Close the file that is being read."""
        self.file.close()
