"""Byte-level tokenizers in the format of Hugging Face tokenizers, with the bytes that every id stands for.

Three things differ from the library's own `encode`:

- Text that looks like a special token stays text, so no document can forge an EOS or a padding token.
- No token is added: no beginning of text, no EOS, no padding.
- Every result is compared with the text: the bytes of the tokens must be the bytes of the text, or of its NFC form if the
  tokenizer normalizes to that (then this form is the document, and its bytes are counted). Whatever else a tokenizer changes
  (case, spaces, unknown characters) would make bits per byte wrong, and is an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from depthbench.data.tokenizer import MAX_ENTRIES, TOKENIZER, InexactError, Tokens, checked
from depthbench.errors import UserError
from depthbench.files import content_hash

USUAL_EOS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>")
PIECE = 2**20  # characters; the library needs about a hundred times as many bytes


def alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    The alphabet of GPT-2: printable characters of Latin-1 stand for themselves, the other bytes, in order, for those from
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


def cut(text: str) -> Iterator[str]:
    """`text` in pieces of at most `PIECE` characters, each but the last up to the end of a line if a line ends in it."""
    return recut(iter([text]))


def recut(chunks: Iterator[str]) -> Iterator[str]:
    """The pieces of a text that comes in chunks: those of `cut`, wherever the chunks end."""
    text, start = "", 0
    for chunk in chunks:
        text, start = text[start:] + chunk, 0
        while len(text) - start > PIECE:
            end = text.rfind("\n", start, start + PIECE) + 1 or start + PIECE
            yield text[start:end]
            start = end
    if start < len(text):
        yield text[start:]


class BpeTokenizer:
    """A byte-level tokenizer from the content of a tokenizer.json; `eos` is the id that ends a document."""

    def __init__(self, core: tokenizers.Tokenizer, file: bytes, name: str, eos: int):
        self.core, self.file, self.name, self.eos = core, file, name, eos
        self.pieces = pieces(core, eos)
        core.no_padding()
        core.no_truncation()
        core.encode_special_tokens = True  # as the text that they are, not as the ids

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return len(self.pieces)

    @cached_property
    def hash(self) -> str:
        """Hash of the file's bytes and the EOS."""
        return content_hash({"kind": TOKENIZER, "sha256": hashlib.sha256(self.file).hexdigest(), "eos": self.eos})

    def encode(self, text: str) -> NDArray[np.uint32]:
        """The ids of `text`, shape [n]. A text above 2**20 characters is encoded in pieces of that size, cut at line ends.

        Raises `InexactError` if the ids stand for another text.
        """
        return np.concatenate([np.empty(0, dtype=np.uint32), *self.encode_all(list(cut(text)))])

    def in_pieces(self, chunks: Iterator[str]) -> Iterator[str]:
        """See `recut`."""
        return recut(chunks)

    def encode_all(self, pieces: Sequence[str]) -> Iterator[NDArray[np.uint32]]:
        """The ids of each piece. The library uses its threads if TOKENIZERS_PARALLELISM lets it."""
        encoded = self.core.encode_batch_fast(list(pieces), add_special_tokens=False)
        return (self.exact(text, encoding.ids) for text, encoding in zip(pieces, encoded, strict=True))

    def exact(self, text: str, ids: list[int]) -> NDArray[np.uint32]:
        """The ids, compared with the text that they are of."""
        found, due = b"".join(map(self.pieces.__getitem__, ids)), text.encode()
        normalizer = self.core.normalizer
        if found != due and not (normalizer and found == normalizer.normalize_str(text).encode()):
            raise InexactError(
                f"tokenizer {self.name!r} gives back another text ({len(due)} bytes became {len(found)}), so bits per byte would be"
                " wrong; use a byte-level tokenizer that keeps text as it is, such as GPT-NeoX's, or bytes"
            )
        return np.array(ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """The text of `ids`, special tokens giving none; bytes that are no UTF-8 (a model may write some) become U+FFFD."""
        array = checked(ids, self.vocab_size)
        return b"".join(self.pieces[id] for id in array.tolist()).decode(errors="replace")

    def token_bytes(self) -> NDArray[np.int64]:
        """The length of each id's bytes, 0 for special tokens and for ids that no token has."""
        return self._lengths

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    def bytes_of(self, ids: Tokens) -> int:
        """UTF-8 bytes that `ids` stand for together."""
        return int(self._lengths[ids].sum())


def pieces(core: tokenizers.Tokenizer, eos: int) -> list[bytes]:
    """The bytes that each id stands for: none for special tokens, for EOS, and for ids and entries that no text can give."""
    vocabulary = core.get_vocab(with_added_tokens=True)
    byte_of, found = alphabet(), [b""] * (1 + max(vocabulary.values()))
    for token, id in vocabulary.items():
        if byte_of.keys() >= set(token):
            found[id] = bytes(byte_of[character] for character in token)
    for id, added in core.get_added_tokens_decoder().items():
        found[id] = b"" if added.special else added.content.encode()  # stands for itself, not for a byte-level spelling
    found[eos] = b""
    return found


def read_tokenizer(path: Path, name: str, eos: str | int = "") -> BpeTokenizer:
    """The tokenizer in the file `path`. `eos` is a token or an id; "" takes the first of `USUAL_EOS` that it has.

    Raises `UserError` if the file cannot be read or is damaged, if it is not byte-level, and if it has no such EOS.
    """
    try:
        file = path.read_bytes()
    except IsADirectoryError as error:
        raise UserError(f"tokenizer {path} is a folder; name the file in it, such as {path / TOKENIZER}") from error
    except OSError as error:
        raise UserError(f"cannot read tokenizer {path}: {error.strerror}") from error
    try:
        core = tokenizers.Tokenizer.from_str(checked_text(file))
        vocabulary = core.get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises plain Exceptions
        raise UserError(f"{path} is no {TOKENIZER} of Hugging Face tokenizers ({error})") from error
    if not vocabulary or max(vocabulary.values()) >= MAX_ENTRIES:
        raise UserError(f"{path} must hold 1 to {MAX_ENTRIES} entries, none with a higher id")
    check_exact(json.loads(core.to_str()), path)
    id = eos if isinstance(eos, int) else find_eos(vocabulary, eos, path)
    if (token := core.id_to_token(id)) is None:
        raise UserError(f"{path} has no token with the id {id} for EOS")
    core.add_special_tokens([token])  # some files list their EOS as ordinary text, which documents could then write
    found = BpeTokenizer(core, file, name, id)
    check_works(found, token, path)
    return found


def checked_text(file: bytes) -> str:
    """The content of a tokenizer.json as text. Raises `ValueError` for what the library answers by ending the process."""
    text = file.decode()
    model = content.get("model") if isinstance(content := json.loads(text), dict) else None
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(model, dict) and model.get(key):
            raise ValueError(f"its model has a {key}, which no byte-level model has")
    return text


def check_exact(content: dict[str, Any], path: Path) -> None:
    """Raise `UserError` for parts of a tokenizer that cannot keep every text, or encode it to different ids each time."""
    normalizers, splitters = kinds(content.get("normalizer")), kinds(content.get("pre_tokenizer"))
    if content["model"].get("dropout"):
        raise UserError(f"{path} encodes at random (its model has dropout); set dropout to null")
    if changing := sorted(normalizers - {"NFC", "ByteLevel"}):
        raise UserError(f"{path} changes text by {', '.join(changing)}, which makes bits per byte wrong; valid: NFC or none")
    if "ByteLevel" not in normalizers | splitters:
        found = ", ".join(sorted(splitters)) or "none"
        raise UserError(f"{path} is not byte-level (pre-tokenizer: {found}), which makes bits per byte wrong; valid: ByteLevel")


def check_works(tokenizer: BpeTokenizer, eos: str, path: Path) -> None:
    """Raise `UserError` if a document can hold the EOS, or if plain text does not come back: now, not at some document."""
    byte_of = alphabet()
    spelled = bytes(byte_of.get(character, 0) for character in eos).decode(errors="replace")
    if any(tokenizer.eos in tokenizer.core.encode(text, add_special_tokens=False).ids for text in (eos, spelled)):
        raise UserError(f"{path} encodes ordinary text to {eos!r}, so it cannot end documents; name another with --eos TOKEN")
    try:
        tokenizer.encode("A text\twith 2  spaces.\n\n")
    except InexactError as reason:
        raise UserError(f"{path}: {reason}") from reason


def kinds(part: dict[str, Any] | None) -> set[str]:
    """The types of a part of a tokenizer.json: its own, or those in a sequence."""
    if not part:
        return set()
    if part["type"] != "Sequence":
        return {part["type"]}
    return set().union(*map(kinds, part.get("normalizers", part.get("pretokenizers", []))))


def find_eos(vocabulary: dict[str, int], eos: str, path: Path) -> int:
    """The id of the token `eos`, or of the first of `USUAL_EOS`. Raises `UserError` that names tokens that may be meant."""
    found = next((token for token in ((eos,) if eos else USUAL_EOS) if token in vocabulary), None)
    if found is not None:
        return vocabulary[found]
    likely = sorted(token for token in vocabulary if len(token) > 2 and token[0] in "<[" and token[-1] in ">]")
    hint = f"candidates: {' '.join(likely[:12])}{' …' if len(likely) > 12 else ''}" if likely else "no token looks like one"
    what = f"no token {eos!r}" if eos else f"none of the usual EOS tokens ({' '.join(USUAL_EOS)})"
    raise UserError(f"{path} has {what}; name one with --eos TOKEN; {hint}")
