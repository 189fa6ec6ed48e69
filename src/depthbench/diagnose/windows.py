"""The windows that a diagnosis looks at: drawn by a seed, the same for every model, and pinned by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from depthbench.data.permutation import permute
from depthbench.errors import UserError


@dataclass(frozen=True, eq=False)
class Windows:
    """`tokens` `[n, T]`, int64; `offsets` `[n]` where each starts; the `seed` that drew them; `sha256` of the tokens."""

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    seed: int
    sha256: str

    def __len__(self) -> int:
        return len(self.tokens)

    def batches(self, rows: int) -> Iterator[NDArray[np.int64]]:
        """Consecutive windows, `rows` at a time."""
        for start in range(0, len(self), rows):
            yield self.tokens[start : start + rows]


def count(tokens: NDArray[np.unsignedinteger], length: int) -> int:
    """How many windows of `length` tokens there are."""
    return len(tokens) // length


def draw(tokens: NDArray[np.unsignedinteger], n: int, length: int, seed: int) -> Windows:
    """`n` windows of `length` tokens, drawn without replacement from those that start at multiples of `length`.

    A smaller n with the same seed gives the first of a larger n's. Raises `UserError` if there are too few.
    """
    if length < 2:
        raise UserError(f"a window must have at least 2 tokens to predict one, got {length}")
    if n < 1:
        raise UserError(f"the number of windows must be at least 1, got {n}")
    available = count(tokens, length)
    if n > available:
        raise UserError(
            f"{n} windows of {length} tokens asked for, and the validation tokens hold {available}; ask for fewer or shorter ones,"
            " or give more text"
        )
    offsets = permute(np.arange(n), available, seed, 0).astype(np.int64) * length
    chosen = np.stack([tokens[offset : offset + length] for offset in offsets]).astype(np.int64)
    return Windows(chosen, offsets, seed, hashlib.sha256(np.ascontiguousarray(chosen, dtype="<i8").tobytes()).hexdigest())
