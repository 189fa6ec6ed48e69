"""Names and numbers as the report writes them."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3  # how many things a sentence names before it counts the rest


def plain(text: str) -> str:
    r"""`text` with control characters as visible escapes (`\x1b`): they could steer a terminal, and abort the chart's renderer."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


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


def percent_span(shares: Sequence[float]) -> str:
    """The smallest and the largest share in percent: `0.36–1.1 %`."""
    low, high = _percent(min(shares)), _percent(max(shares))
    return f"{low} %" if low == high else f"{low}–{high} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share >= 0.01 else f"{100 * share:.2g}"
