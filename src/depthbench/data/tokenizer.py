"""Tokenizers: text to token ids and back, with a content hash so that token files know what made them.

    bytes                     one id for each UTF-8 byte
    bpe-8192                  a byte-level BPE of that many entries (any size), which `prepare` trains on its training documents
    path/to/tokenizer.json    a trained byte-level tokenizer in the format of Hugging Face tokenizers, or a folder with that file
    hf:NAME or owner/name     the tokenizer.json of that name on the Hugging Face hub, or in its cache

The library that runs the last three is imported when one of them is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from depthbench.data.hub import HUB, fetch_tokenizer
from depthbench.data.manifest import load_manifest, mend
from depthbench.errors import UserError, unknown
from depthbench.files import content_hash

Tokens = NDArray[np.integer[Any]]
TOKENIZER = "tokenizer.json"  # the copy that a folder of token files keeps
MIN_ENTRIES, MAX_ENTRIES = 256 + 1 + 1, 2**20  # every byte, EOS and a merge


class InexactError(Exception):
    """A tokenizer does not keep the text of a document, so its tokens do not tell how many bytes they stand for."""


class Tokenizer(Protocol):
    """What the data room asks of a tokenizer."""

    @property
    def name(self) -> str:
        """What it is called; `hash` tells two of the same name apart."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, EOS included."""

    @property
    def eos(self) -> int:
        """The id that ends every document, and that no text is encoded to."""

    @property
    def hash(self) -> str:
        """Hash of everything that decides which ids a text gets; equal hashes mean equal tokens."""

    @property
    def file(self) -> bytes | None:
        """The content of its tokenizer.json, or None if there is none."""

    def encode(self, text: str) -> Tokens:
        """The ids of `text`, shape [n], without EOS. Raises `InexactError` if they do not stand for the text."""

    def in_pieces(self, chunks: Iterator[str]) -> Iterator[str]:
        """A text that comes in chunks, in pieces that are not too long to encode; the chunks do not decide where they are cut."""

    def encode_all(self, pieces: Sequence[str]) -> Iterator[Tokens]:
        """The ids of each piece, as `encode` gives them."""

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """The text of `ids`; EOS gives no text."""

    def token_bytes(self) -> NDArray[np.int64]:
        """UTF-8 bytes that each id stands for, shape [vocab_size], EOS 0: the denominator of bits per byte."""

    def bytes_of(self, ids: Tokens) -> int:
        """UTF-8 bytes that `ids` stand for together."""


class ByteTokenizer:
    """One id for each UTF-8 byte, and EOS 256. No training, no files, the same everywhere."""

    name = "bytes"
    vocab_size = 257
    eos = 256
    file = None

    @property
    def hash(self) -> str:
        """Hash of the definition: there is nothing else to the tokenizer."""
        return content_hash({"kind": "utf-8 bytes", "vocab_size": self.vocab_size, "eos": self.eos})

    def encode(self, text: str) -> NDArray[np.uint16]:
        """The UTF-8 bytes of `text`, shape [n]."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def in_pieces(self, chunks: Iterator[str]) -> Iterator[str]:
        """The chunks themselves."""
        return chunks

    def encode_all(self, pieces: Sequence[str]) -> Iterator[NDArray[np.uint16]]:
        """One after the other."""
        return map(self.encode, pieces)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """The text of `ids`; bytes that are no UTF-8 (a model may write some) become U+FFFD."""
        array = checked(ids, self.vocab_size)
        text: bytes = array[array != self.eos].astype(np.uint8).tobytes()
        return text.decode(errors="replace")

    def token_bytes(self) -> NDArray[np.int64]:
        """1 for each byte, 0 for EOS."""
        lengths = np.ones(self.vocab_size, dtype=np.int64)
        lengths[self.eos] = 0
        return lengths

    def bytes_of(self, ids: Tokens) -> int:
        """As many as ids that are not EOS."""
        return int(np.count_nonzero(ids != self.eos))


@dataclass(frozen=True)
class Untrained:
    """A byte-level BPE of `entries` ids, EOS included, that `prepare` trains on the training documents."""

    entries: int

    @property
    def name(self) -> str:
        """Such as `bpe-8192`."""
        return f"bpe-{self.entries}"


HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
TOKENIZERS = {"bytes": ByteTokenizer}
VALID = (*TOKENIZERS, "bpe-8192", f"path/to/{TOKENIZER}", "hf:owner/name")


def find_tokenizer(name: str, eos: str = "") -> Tokenizer | Untrained:
    """What `name` asks for. `eos` says which token of a tokenizer.json ends a document, by default the usual one that it has.

    Raises `UserError` naming the nearest valid name, and if a tokenizer.json is damaged, has no EOS or is not byte-level.
    """
    entries = bpe_entries(name)
    if name not in TOKENIZERS and entries is None:  # a folder may be called bytes or bpe-8192, but is not meant then
        if name.endswith(".json"):
            return read_named(Path(name), eos)
        if Path(name).is_dir():
            return read_named(Path(name, TOKENIZER) if Path(name, TOKENIZER).exists() else Path(name), eos)
        if name.startswith(HUB) or HUB_NAME.fullmatch(name):
            return read_hub(name.removeprefix(HUB), eos)
        raise unknown("tokenizer", name, VALID)
    if eos:
        raise UserError(f"--eos {eos} goes with a {TOKENIZER}; {name!r} has an EOS of its own")
    if entries is None:
        return TOKENIZERS[name]()
    if not MIN_ENTRIES <= entries <= MAX_ENTRIES:
        raise UserError(f"a BPE has from {MIN_ENTRIES} (every byte, EOS and a merge) to {MAX_ENTRIES} entries, got {name!r}")
    return Untrained(entries)


def bpe_entries(name: str) -> int | None:
    """The number in a name such as `bpe-8192`, or None if it is none."""
    match = re.fullmatch(r"bpe-(0|[1-9][0-9]{,17})", name)
    return int(match[1]) if match else None


def read_named(path: Path, eos: str) -> Tokenizer:
    """The tokenizer in the file `path`, called by the file's stem."""
    from depthbench.data.bpe import read_tokenizer

    if path.stem in TOKENIZERS or bpe_entries(path.stem) is not None:
        raise UserError(f"{path} has the name of another tokenizer, {path.stem!r}; rename the file")
    return read_tokenizer(path, path.stem, eos)


def read_hub(name: str, eos: str) -> Tokenizer:
    """The tokenizer of `owner/name` on the hub, called by the last part of its name."""
    from depthbench.data.bpe import read_tokenizer

    label = name.rpartition("/")[2]
    if not label or label in TOKENIZERS or bpe_entries(label) is not None:
        raise UserError(f"{HUB}{name} names no tokenizer of the hub, or has the name of another; write {HUB}owner/name")
    return read_tokenizer(fetch_tokenizer(name), label, eos)


def load_tokenizer(name: str, eos: str = "") -> Tokenizer:
    """The tokenizer called `name`, which needs no training. Raises `UserError` as `find_tokenizer` does."""
    found = find_tokenizer(name, eos)
    if isinstance(found, Untrained):
        raise UserError(
            f"{name} is trained on the text it is for: depthbench data prepare TEXTS --tokenizer {name} --out FOLDER;"
            f" then use FOLDER/{TOKENIZER}"
        )
    return found


def kept_tokenizer(folder: Path, name: str, eos: int) -> Tokenizer:
    """The tokenizer called `name` with its EOS, from the copy in `folder` if it has a file."""
    path = folder / TOKENIZER
    if name in TOKENIZERS:
        return load_tokenizer(name)
    from depthbench.data.bpe import read_tokenizer

    return read_tokenizer(path, name, eos)


def folder_tokenizer(dir: Path) -> Tokenizer:
    """The tokenizer that made the token files in `dir`. Raises `UserError` if the copy there is not what the manifest says."""
    manifest = load_manifest(dir)
    found = kept_tokenizer(dir, manifest.tokenizer, manifest.eos)
    if found.hash != manifest.tokenizer_hash:
        raise UserError(f"{dir / TOKENIZER} does not have the hash in its manifest, so it was changed or damaged; {mend(dir)}")
    return found


def checked(ids: Sequence[int] | Tokens, vocab_size: int) -> NDArray[np.int64]:
    """The ids as an array. Raises `UserError` if one is outside the vocabulary."""
    array = np.asarray(ids, dtype=np.int64)
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
        raise UserError(f"token ids must lie in 0 to {vocab_size - 1}, got {array.min()} to {array.max()}")
    return array
