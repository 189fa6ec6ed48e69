"""Choosing a learning rate: which of those tried is best, whether it lies on an edge, and which to try next.

The search that decides what to train and the report that reads what was trained use the same rule, so they cannot disagree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROUND_MANTISSAS = (1.0, 2.0, 5.0)
LOW, HIGH = "low", "high"


@dataclass(frozen=True)
class TriedRate:
    """One learning rate: its loss in nats per token over the seeds that all rates share (None if a seed diverged) and how many
    seeds it was trained with in all.
    """

    rate: float
    loss: float | None
    n_seeds: int


@dataclass(frozen=True)
class RateChoice:
    """`chosen` is the trained rate with the lowest loss, None if every one diverged. `edge` is "low" or "high" where it is the
    outermost one tried, so that the optimum may lie beyond, else empty; one rate alone is no search and has no edge. `refined` and
    `refined_loss` are the vertex of the parabola through it and its neighbours: an estimate, not a run.
    """

    tried: tuple[TriedRate, ...]
    chosen: float | None
    edge: str
    refined: float | None = None
    refined_loss: float | None = None


def choose_rate(losses: Mapping[float, Mapping[int, float | None]]) -> RateChoice:
    """The best of the learning rates tried, `{rate: {seed: loss}}` with None for a run that diverged.

    A rate at which any seed diverged is worse than any other. The others are compared on the seeds that all of them were trained
    with, since seeds share their data and start, or where there is no such seed on their means. Of equals the lower rate is taken.
    """
    seeds = [set(runs) for runs in losses.values() if None not in runs.values()]
    shared = set.intersection(*seeds) if seeds else set()
    tried = tuple(TriedRate(rate, _loss(losses[rate], shared), len(losses[rate])) for rate in sorted(losses))
    finite = [item for item in tried if item.loss is not None]
    if not finite:
        return RateChoice(tried, None, LOW if tried else "")
    best = min(finite, key=lambda item: (item.loss, item.rate))
    at = tried.index(best)
    if len(tried) == 1:
        return RateChoice(tried, best.rate, "")
    if at in (0, len(tried) - 1):
        return RateChoice(tried, best.rate, LOW if at == 0 else HIGH)
    return RateChoice(tried, best.rate, "", *_vertex(tried[at - 1 : at + 2]))


def _loss(runs: Mapping[int, float | None], shared: set[int]) -> float | None:
    found = [loss for seed, loss in runs.items() if not shared or seed in shared]
    if None in runs.values():
        return None
    return statistics.fmean(loss for loss in found if loss is not None)


def _vertex(three: Sequence[TriedRate]) -> tuple[float | None, float | None]:
    """Rate and loss at the lowest point of the parabola through three points in log rate; none if one of them diverged.

    The middle one is no higher than its neighbours and below at least one of them, so the parabola opens upwards and its lowest
    point lies between them.
    """
    losses = [item.loss for item in three]
    if None in losses:
        return None, None
    before, best, after = (loss for loss in losses if loss is not None)
    left, right = (math.log(three[i].rate / three[1].rate) for i in (0, 2))
    curvature = ((before - best) / left - (after - best) / right) / (left - right)
    if curvature <= 0:  # three equal losses
        return None, None
    slope = (after - best) / right - curvature * right
    at = -slope / (2 * curvature)
    return three[1].rate * math.exp(at), best + slope * at + curvature * at * at


def next_rate(grid: Sequence[float], side: str) -> float:
    """The learning rate that widens `grid` (two or more, increasing) on its "low" or "high" side.

    A grid of the 1-2-5 series goes on with that series; any other keeps the ratio of its two outermost values on that side.
    """
    outer, inner = (grid[0], grid[1]) if side == LOW else (grid[-1], grid[-2])
    if all(_mantissa(rate) in ROUND_MANTISSAS for rate in grid):
        at = ROUND_MANTISSAS.index(_mantissa(outer))
        factor = (2.0, 2.5, 2.0)[at] if side == HIGH else 1 / (2.0, 2.0, 2.5)[at]
    else:
        factor = outer / inner
    return tidy(outer * factor)


def tidy(rate: float) -> float:
    """Six significant digits, so that the same rate reached in two ways is the same number."""
    return float(f"{rate:.6g}")


def _mantissa(rate: float) -> float:
    return float(f"{rate:.6e}".split("e")[0])
