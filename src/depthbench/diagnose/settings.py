"""What is measured, on how many windows of which length, with which thresholds."""

from __future__ import annotations

from dataclasses import dataclass

from depthbench.diagnose import shares
from depthbench.diagnose.mixing import DEAD
from depthbench.errors import UserError, unknown

SIZES = {  # windows and tokens of each; the published ones, and for the others those of their nearest relative
    "angular": (128, 512),
    "causal": (16, 256),
    "permutation": (12, 256),
    "lens": (32, 512),
    "usefulness": (32, 512),
    "paths": (16, 256),
    "mixing": (16, 256),
}
MEASURES = tuple(SIZES)

THRESHOLDS = {  # the field of `Settings` that a measure is held against
    "causal": "causal_threshold",
    "permutation": "permutation_threshold",
    "usefulness": "useful_ratio",
    "mixing": "dead_weight",
}


@dataclass(frozen=True)
class Settings:
    """`only`: measures, all if empty. `windows` and `length`: of every measure, 0 for its own size, as far as context and text
    allow. `skip`: rules for leaving out a block, the first two that a design has if empty. `control`: also measure the untrained
    model.
    """

    only: tuple[str, ...] = ()
    windows: int = 0
    length: int = 0
    seed: int = 0
    skip: tuple[str, ...] = ()
    causal_threshold: float = shares.CAUSAL_THRESHOLD
    permutation_threshold: float = shares.PERMUTATION_THRESHOLD
    useful_ratio: float = shares.USEFUL_RATIO
    dead_weight: float = DEAD
    control: bool = True

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in MEASURES:
                raise unknown("measure", name, MEASURES)
        for name in ("windows", "length"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be at least 1, or 0 for the published size, got {getattr(self, name)}")
        for name in ("causal_threshold", "permutation_threshold", "useful_ratio", "dead_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} must be a number of at least 0, got {getattr(self, name)}")

    @property
    def measures(self) -> tuple[str, ...]:
        """Those to take, in order."""
        return tuple(name for name in MEASURES if not self.only or name in self.only)

    def of(self, measure: str) -> dict[str, int | float]:
        """What was asked for and holds for a measure; how many windows that makes is told elsewhere."""
        found: dict[str, int | float] = {"windows": self.windows, "length": self.length, "seed": self.seed}
        return found | ({"threshold": getattr(self, THRESHOLDS[measure])} if measure in THRESHOLDS else {})

    def size(self, measure: str, context: int, n_tokens: int) -> tuple[int, int]:
        """Windows and tokens of a measure. What is asked for explicitly is never made smaller.

        Raises `UserError` if it does not fit the context or the text.
        """
        n, length = SIZES[measure]
        if self.length > context:
            raise UserError(
                f"windows of {self.length} tokens are longer than the model's context of {context}; give a --length up to it"
            )
        length = self.length or min(length, context)
        available = n_tokens // length
        if available < 1:
            raise UserError(
                f"the text has {n_tokens} tokens, fewer than one window of {length}; give more text or a shorter --length"
            )
        n = self.windows or min(n, available)
        return n - 1 if measure == "usefulness" and n % 2 and n > 1 and not self.windows else n, length
