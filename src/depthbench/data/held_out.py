"""Sources kept for validation: which documents they hold, by hash, so that training never sees one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthbench.data.long_text import digest_of
from depthbench.data.reading import contents
from depthbench.data.sources import SourceFile, identity
from depthbench.errors import UserError
from depthbench.files import content_hash, write_with

KEPT_BYTES = 16  # of each sha256: two documents of a billion share them with a probability of 1e-21
POLICIES = ("refuse", "drop")  # what becomes of training documents that are validation documents too


def find_held_out(files: Sequence[SourceFile], folder: Path) -> Path:
    """A file in `folder` with the hashes of all documents of `files`, for `is_held_out`; made unless an earlier call made it."""
    path = folder / f"{content_hash([1, identity(files)])[:32]}.held_out.npy"
    if not path.exists():
        kept = bytearray()
        for file in files:
            for document in contents(file):
                kept += digest_of(document)[:KEPT_BYTES]
        found = np.unique(np.frombuffer(bytes(kept), dtype=f"S{KEPT_BYTES}"))
        write_with(path, lambda out: np.save(out, found))
    return path


@lru_cache(maxsize=1)
def load_held_out(path: Path) -> NDArray[np.bytes_]:
    """Sorted, and mapped: processes share it."""
    found: NDArray[np.bytes_] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def is_held_out(digest: bytes, held_out: Path | None) -> bool:
    """Whether the document with this sha256 is one of those in the file."""
    if held_out is None:
        return False
    known = load_held_out(held_out)
    wanted: Any = np.bytes_(digest[:KEPT_BYTES])
    place = int(np.searchsorted(known, wanted))
    return place < len(known) and bool(known[place] == wanted)


def check_duplicates(count: int, example: str, policy: str, left: int) -> None:
    """Raise `UserError` if documents are on both sides and the policy refuses that, or if nothing is left to train on."""
    if count and policy == "refuse":
        raise UserError(
            f"{count} training documents are validation documents too, such as {example}; give other text,"
            " or leave them out of training by --duplicates drop (what is done is kept)"
        )
    if count and not left:
        raise UserError(f"all {count} training documents are validation documents too; give other text to train on")


def example_of(label: str, number: int, beginning: str) -> str:
    """A document as a message shows it."""
    text = " ".join(beginning[:80].split())
    return f"document {number} of {label} ({text[:40]!r})"
