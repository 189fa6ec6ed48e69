"""The published suites: budgets, layer counts and step counts of the study this benchmark reproduces (arXiv 2609.32534)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from depthbench.errors import unknown
from depthbench.shape import Budget, ModelShape, solve_all


@dataclass(frozen=True)
class Suite:
    """A budget, the layer counts trained at it, and the published number of updates (batch 512 × 2048 tokens)."""

    name: str
    budget: Budget
    n_layers: tuple[int, ...]
    steps: int

    @property
    def shapes(self) -> list[ModelShape]:
        """The shapes of the suite, solved from its budget."""
        return solve_all(self.budget, self.n_layers)


_TOTAL = Budget(405e6)
SUITES = {
    suite.name: suite
    for suite in (
        Suite("400m", _TOTAL, (16, 20, 24, 28, 32, 42, 70), 7_600),
        Suite("backbone-300m", replace(_TOTAL, count=302e6, match="backbone"), (16, 24, 32, 42, 70, 84), 7_600),
        Suite("ladder-200m", replace(_TOTAL, count=205e6), (24, 18, 12), 3_800),
        Suite("ladder-300m", replace(_TOTAL, count=293e6), (28, 21, 14), 5_700),
        Suite("ladder-400m", _TOTAL, (32, 24, 16), 7_600),
        Suite("ladder-500m", replace(_TOTAL, count=504e6), (34, 26, 17), 9_500),
        Suite("1.6b", replace(_TOTAL, count=1.615e9, n_kv_heads=8, d_ff_ratio="3"), (28, 40, 54), 30_400),
    )
}
LADDER = ("ladder-200m", "ladder-300m", "ladder-400m", "ladder-500m")


def find_suites(name: str) -> list[Suite]:
    """The suite called `name`, or the four tiers of `ladder`."""
    if name == "ladder":
        return [SUITES[tier] for tier in LADDER]
    if name not in SUITES:
        raise unknown("suite", name, [*SUITES, "ladder"])
    return [SUITES[name]]
