"""Small tokenizer.json files, whole and spoiled."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EOS = "<|endoftext|>"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def spelling() -> dict[int, str]:
    """The character for each byte, written down as GPT-2 published it."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    found, next_free = {}, 256
    for byte in range(256):
        found[byte] = chr(byte) if byte in kept else chr(next_free)
        next_free += byte not in kept
    return found


def spelled(text: str | bytes) -> str:
    return "".join(spelling()[byte] for byte in (text.encode() if isinstance(text, str) else text))


def added(id: int, content: str, special: bool = True) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": content, "special": special} | plain


def content(
    merges: Sequence[tuple[str | bytes, str | bytes]] = (), extra: list[dict[str, Any]] | None = None, **changes
) -> dict[str, Any]:
    """A tokenizer: ids 0 to 255 are the bytes, then the merges, then the added tokens (by default EOS and padding)."""
    vocabulary = {character: byte for byte, character in spelling().items()}
    pairs = [[spelled(left), spelled(right)] for left, right in merges]
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    if extra is None:
        extra = [added(len(vocabulary), EOS), added(len(vocabulary) + 1, "<|padding|>")]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "vocab": vocabulary, "merges": pairs}
    model |= changes.pop("model", {})
    parts = {"normalizer": None, "pre_tokenizer": BYTE_LEVEL, "post_processor": None, "decoder": BYTE_LEVEL}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": extra, **parts, "model": model} | changes


def write(path: Path, *args, **changes) -> Path:
    """`content` as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(*args, **changes)), encoding="utf-8")
    return path
