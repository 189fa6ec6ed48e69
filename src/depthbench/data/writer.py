"""Documents to tokens on the side where they belong, with a count of everything that is left out."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from depthbench.data.held_out import example_of, is_held_out
from depthbench.data.job import Counts, Far, Job, Part, split_of, tokenizer_of
from depthbench.data.long_text import Document, chunks_of, digest_of
from depthbench.data.manifest import DTYPES, dtype_for
from depthbench.data.sources import SourceFile
from depthbench.data.tokenizer import InexactError
from depthbench.data.workers import tell
from depthbench.errors import UserError

BATCH = 2**19  # characters that are encoded together; the library needs about a hundred times as many bytes
TELL_SECONDS = 0.5


@dataclass(frozen=True)
class Piece:
    """Text that waits for the tokenizer: a document, or a part of one that goes on."""

    text: str
    split: str
    last: bool
    file: SourceFile
    number: int


class Writer:
    """Gathers pieces of text, encodes them together, and writes the tokens: a tokenizer works on many texts at a time."""

    def __init__(self, job: Job, part: Part, out: dict[str, BinaryIO]):
        self.job, self.part, self.out = job, part, out
        self.tokenizer = tokenizer_of(job)
        self.dtype = np.dtype(DTYPES[dtype_for(self.tokenizer.vocab_size)])
        self.end = self.tokenizer.eos.to_bytes(self.dtype.itemsize, "little")
        self.waiting: list[Piece] = []
        self.size = 0
        self.told = time.monotonic()

    def add(self, document: Document, file: SourceFile, number: int) -> None:
        """Take a document, the `number`th of `file`, to its side, unless it is none, empty or held out."""
        if not document:
            self.part.null_documents += document is None
            self.part.empty_documents += document is not None
            return
        digest = digest_of(document)
        if is_held_out(digest, self.job.held_out):
            self.part.duplicates += 1
            self.part.example = self.part.example or example_of(file.label, number, next(chunks_of(document)))
            return
        split = split_of(digest, self.job.validation_fraction)
        ahead: Piece | None = None
        for text in self.tokenizer.in_pieces(chunks_of(document)):
            if ahead:
                self.put(ahead)
            ahead = Piece(text, split, False, file, number)
        assert ahead
        self.put(replace(ahead, last=True))

    def put(self, piece: Piece) -> None:
        """Let a piece wait; encode those that wait when there are enough."""
        self.waiting.append(piece)
        self.size += len(piece.text)
        if self.size >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Encode and write what waits."""
        encoded = self.tokenizer.encode_all([piece.text for piece in self.waiting])
        for piece in self.waiting:
            try:
                tokens = next(encoded)
            except InexactError as reason:
                raise UserError(f"{piece.file.path}, document {piece.number}: {reason}") from reason
            self.out[piece.split].write(tokens.astype(self.dtype, copy=False).tobytes())
            counts: Counts = getattr(self.part, piece.split)
            counts.tokens += len(tokens) + piece.last
            counts.bytes += self.tokenizer.bytes_of(tokens)
            counts.documents += piece.last
            if piece.last:
                self.out[piece.split].write(self.end)
        self.waiting, self.size = [], 0

    def tell(self, bytes: int) -> None:
        """Tell whoever waits for the part how far it is, now and then."""
        if (now := time.monotonic()) - self.told > TELL_SECONDS:
            self.told = now
            tell(Far(bytes, *self.part.so_far))
