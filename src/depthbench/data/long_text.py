"""Plain files too long to hold in memory: one document all the same, whose text is read again, a little at a time.

The side of a document follows from the hash of its whole text, so the file is read once for the hash, and once for the text.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from depthbench.errors import UserError

HELD = 8 * 2**20  # bytes of a plain file that is held whole
CHUNK = 2**20


class NotTextError(Exception):
    """The file holds no text: its bytes are not UTF-8, or it contains NUL bytes. The message says which."""


@dataclass(frozen=True)
class LongText:
    """A document that is not held: its file, how to read that again, and the sha256 of its UTF-8 text."""

    path: Path
    open: Callable[[], BinaryIO]
    digest: bytes

    def chunks(self) -> Iterator[str]:
        """The text. Raises `UserError` if it is another by now."""
        hash = hashlib.sha256()
        try:
            with self.open() as stream:
                yield from decoded(hashed(blocks(stream), hash))
            same = hash.digest() == self.digest
        except NotTextError:
            same = False
        if not same:
            raise UserError(f"{self.path} was changed while it was read; repeat to read it anew")


Document = str | LongText | None  # None: a row without text


def digest_of(document: str | LongText) -> bytes:
    """sha256 of the UTF-8 text."""
    return hashlib.sha256(document.encode()).digest() if isinstance(document, str) else document.digest


def chunks_of(document: str | LongText) -> Iterator[str]:
    """The text in one chunk, or in several if it is not held."""
    return iter([document]) if isinstance(document, str) else document.chunks()


def long_text(begun: bytes, stream: BinaryIO, path: Path, again: Callable[[], BinaryIO]) -> LongText:
    """The document that begins with `begun` and goes on in `stream`. Raises `NotTextError` if it is no text."""
    hash = hashlib.sha256()
    for _ in decoded(hashed(chain([begun], blocks(stream)), hash)):
        pass
    return LongText(path, again, hash.digest())


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream, a little at a time."""
    while block := stream.read(CHUNK):
        yield block


def hashed(blocks: Iterator[bytes], hash: hashlib._Hash) -> Iterator[bytes]:
    """The same blocks, with `hash` told of each."""
    for block in blocks:
        hash.update(block)
        yield block


def decoded(blocks: Iterator[bytes]) -> Iterator[str]:
    """Blocks of UTF-8 as text; a character may be cut by a border. Raises `NotTextError`."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    before = 0
    for block in chain(blocks, [b""]):
        if b"\0" in block:  # also finds UTF-16 text, which often happens to be valid UTF-8
            raise NotTextError("binary: contains NUL bytes")
        kept = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise NotTextError(f"not UTF-8 at byte {before - kept + error.start}") from error
        before += len(block)
        if text:
            yield text
