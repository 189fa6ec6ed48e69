"""Tokenizers: text to token ids and back, with a content hash so that token files know what made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from depthbench.errors import UserError, unknown
from depthbench.files import content_hash

Tokens = NDArray[np.integer[Any]]


class Tokenizer(Protocol):
    """What the data room asks of a tokenizer."""

    @property
    def name(self) -> str:
        """What `load_tokenizer` takes to build it again."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, EOS included."""

    @property
    def eos(self) -> int:
        """The id that ends every document."""

    @property
    def hash(self) -> str:
        """Hash of everything that decides which ids a text gets; equal hashes mean equal tokens."""

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape [n], without EOS."""

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """The text of `ids`; EOS gives no text."""

    def token_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes that each id stands for, shape [vocab_size], EOS 0: the denominator of bits per byte."""


class ByteTokenizer:
    """One id for each UTF-8 byte, and EOS 256. No training, no files, the same everywhere."""

    name = "bytes"
    vocab_size = 257
    eos = 256

    @property
    def hash(self) -> str:
        """Hash of the definition: there is nothing else to the tokenizer."""
        return content_hash({"kind": "utf-8 bytes", "vocab_size": self.vocab_size, "eos": self.eos})

    def encode(self, text: str) -> NDArray[np.uint16]:
        """The UTF-8 bytes of `text`, shape [n]."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """The text of `ids`; bytes that are no UTF-8 (a model may write some) become U+FFFD."""
        array = np.asarray(ids, dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() < self.vocab_size:
            raise UserError(f"token ids must lie in 0 to {self.vocab_size - 1}, got {array.min()} to {array.max()}")
        text: bytes = array[array != self.eos].astype(np.uint8).tobytes()
        return text.decode(errors="replace")

    def token_bytes(self) -> NDArray[np.int64]:
        """1 for each byte, 0 for EOS."""
        lengths = np.ones(self.vocab_size, dtype=np.int64)
        lengths[self.eos] = 0
        return lengths


TOKENIZERS = {"bytes": ByteTokenizer}


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer called `name`. Raises `UserError` naming the nearest valid one."""
    if name not in TOKENIZERS:
        raise unknown("tokenizer", name, TOKENIZERS)
    return TOKENIZERS[name]()
