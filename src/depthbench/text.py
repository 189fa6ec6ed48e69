"""Names and numbers as the report writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depthbench.verdict.statistics import Estimate

NAMED = 3  # how many things a sentence names before it counts the rest


def plain(text: str) -> str:
    r"""`text` with control characters as visible escapes (`\x1b`): they could steer a terminal, and abort the chart's renderer."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def some(names: Sequence[str], most: int = NAMED) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def ratio_text(ratio: float) -> str:
    """An aspect ratio in three digits: `9.14`, `42.7`, `1024`."""
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.3g}"


def parameter_count(count: int) -> str:
    """Three digits and a unit: `407M`, `1.61B`, `0.43M`, `2.3k`."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    if count >= 1e5:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)


def parameter_span(counts: Sequence[int]) -> str:
    """The smallest and the largest count: `0.43–0.45M`, or one if they read the same."""
    low, high = parameter_count(min(counts)), parameter_count(max(counts))
    if low == high:
        return low
    return f"{low[:-1] if low[-1] == high[-1] else low}–{high}"


def percent(share: float) -> str:
    """A share in percent: `13.8 %`, `0.36 %`, `<0.01 %`."""
    if 0 < share < 1e-4:
        return "<0.01 %"
    return f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2g} %"


def estimate_text(estimate: Estimate | None, sign: str = "+", digits: int = 4) -> str:
    """A number with its interval if it has one: `-0.0123 [-0.0150, -0.0096]`."""
    if estimate is None:
        return "–"
    interval = interval_text(estimate.low, estimate.high, sign, digits)
    return f"{estimate.value:{sign}.{digits}f} {interval}".rstrip()


def interval_text(low: float | None, high: float | None, sign: str = "+", digits: int = 4) -> str:
    """An interval in brackets: `[-0.0150, -0.0096]`; nothing where there is none."""
    return "" if low is None or high is None else f"[{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def rank_text(rank: tuple[int, int] | None) -> str:
    """A range of ranks: `2`, `3–6`."""
    if rank is None:
        return "–"
    return str(rank[0]) if rank[0] == rank[1] else f"{rank[0]}–{rank[1]}"


def p_text(p: float | None) -> str:
    """A p-value to three decimals, and `<0.001` below them."""
    if p is None:
        return "–"
    return "<0.001" if p < 0.001 else f"{p:.3f}"
