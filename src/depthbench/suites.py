"""The published suites: budgets, layer counts and step counts of the study this benchmark reproduces (arXiv 2609.32534)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from depthbench.errors import UserError, unknown
from depthbench.shape import Budget, ModelShape, solve_all


@dataclass(frozen=True)
class Tier:
    """One budget, the layer counts trained at it, and the updates of every run at it (0: as the study's recipe says)."""

    name: str
    budget: Budget
    n_layers: tuple[int, ...]
    steps: int = 0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise UserError(f"tier {self.name}: steps must be at least 1, or 0 for the recipe's, got {self.steps}")

    @property
    def shapes(self) -> list[ModelShape]:
        """The shapes of the tier, solved from its budget."""
        return solve_all(self.budget, self.n_layers)


_TOTAL = Budget(405e6)
SUITES = {
    tier.name: tier
    for tier in (  # the published number of updates, of 512 × 2048 tokens each
        Tier("400m", _TOTAL, (16, 20, 24, 28, 32, 42, 70), 7_600),
        Tier("backbone-300m", replace(_TOTAL, count=302e6, match="backbone"), (16, 24, 32, 42, 70, 84), 7_600),
        Tier("ladder-200m", replace(_TOTAL, count=205e6), (24, 18, 12), 3_800),
        Tier("ladder-300m", replace(_TOTAL, count=293e6), (28, 21, 14), 5_700),
        Tier("ladder-400m", _TOTAL, (32, 24, 16), 7_600),
        Tier("ladder-500m", replace(_TOTAL, count=504e6), (34, 26, 17), 9_500),
        Tier("1.6b", replace(_TOTAL, count=1.615e9, n_kv_heads=8, d_ff_ratio="3"), (28, 40, 54), 30_400),
    )
}
LADDER = ("ladder-200m", "ladder-300m", "ladder-400m", "ladder-500m")


def find_suites(name: str) -> list[Tier]:
    """The suite called `name`, or the four tiers of `ladder`."""
    if name == "ladder":
        return [SUITES[tier] for tier in LADDER]
    if name not in SUITES:
        raise unknown("suite", name, [*SUITES, "ladder"])
    return [SUITES[name]]
