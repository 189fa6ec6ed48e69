"""Where the best aspect ratio of a design lies at every budget of a ladder, and whether it moves with parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from depthbench.text import parameter_count, some
from depthbench.verdict.statistics import Estimate, FloatArray, draw_means, interval, slope_weights
from depthbench.verdict.summary import CellSummary, Summary

SHAPES = 3  # that a parabola needs
WIDE, DEEP, FEW = "wide", "deep", "too few shapes"


@dataclass(frozen=True)
class TierBest:
    """The aspect ratio at which the parabola through a tier's losses, in log aspect ratio, is lowest within the shapes trained.

    `edge` is "wide" or "deep" where that is the end of the range, so that the best may lie beyond; with fewer than three shapes it
    is "too few shapes" and the aspect ratio is that of the lowest loss.
    """

    parameters: int
    aspect_ratio: float
    edge: str


@dataclass(frozen=True)
class AspectMove:
    """The best aspect ratio of one design at every tier, smallest first.

    `trend` is the slope of its log2 against log2 of total parameters: above 0, larger models want to be wider for their depth. It
    is None if no tier has its best inside the shapes trained, or only one has enough of them.
    """

    label: str
    tiers: tuple[TierBest, ...]
    trend: Estimate | None
    notes: tuple[str, ...] = ()


def move(label: str, tiers: Sequence[Summary]) -> AspectMove | None:
    """How the best aspect ratio moves over `tiers`, smallest first; None if the design has no loss in two of them."""
    found = [sorted(cells, key=lambda cell: cell.shape.aspect_ratio) for tier in tiers if (cells := _of(tier, label))]
    if len(found) < 2:
        return None
    best = tuple(_tier_best(cells) for cells in found)
    usable = [(tier, cells) for tier, cells in zip(best, found, strict=True) if tier.edge != FEW]
    trend = None
    if len(usable) > 1 and any(not tier.edge for tier, _ in usable):
        trend = _trend([tier for tier, _ in usable], [cells for _, cells in usable])
    return AspectMove(label, best, trend, tuple(_notes(best, trend)))


def _of(tier: Summary, label: str) -> list[CellSummary]:
    return [cell for cell in tier.drawn if cell.label == label]


def _logs(cells: Sequence[CellSummary]) -> FloatArray:
    return np.log2([cell.shape.aspect_ratio for cell in cells])


def _tier_best(cells: Sequence[CellSummary]) -> TierBest:
    losses = np.array([cell.loss for cell in cells], dtype=np.float64)
    parameters = round(statistics.fmean(cell.total_parameters for cell in cells))
    if len(set(_logs(cells))) < SHAPES:
        return TierBest(parameters, cells[int(np.argmin(losses))].shape.aspect_ratio, FEW)
    at = float(lowest(_logs(cells), losses))
    edge = DEEP if at == _logs(cells)[0] else WIDE if at == _logs(cells)[-1] else ""
    return TierBest(parameters, 2**at, edge)


def lowest(x: FloatArray, losses: FloatArray) -> FloatArray:
    """Where the parabola through `losses` [..., points] is lowest between the ends of `x` [points], which increases."""
    middle = x.mean()
    basis = np.stack([np.ones_like(x), x - middle, (x - middle) ** 2], axis=1)
    fits = losses @ np.linalg.pinv(basis).T
    straight, bent = fits[..., 1], fits[..., 2]
    vertex = middle - straight / np.where(bent > 0, 2 * bent, 1)
    ends = np.stack([basis[0] @ np.moveaxis(fits, -1, 0), basis[-1] @ np.moveaxis(fits, -1, 0)])
    lower_end = np.where(ends[0] <= ends[1], x[0], x[-1])
    at: FloatArray = np.where(bent > 0, np.clip(vertex, x[0], x[-1]), lower_end)
    return at


def _trend(best: Sequence[TierBest], cells: Sequence[Sequence[CellSummary]]) -> Estimate:
    weights = slope_weights([tier.parameters for tier in best])
    value = float(weights @ [math.log2(tier.aspect_ratio) for tier in best])
    arrays = [_losses(tier) for tier in cells]
    n = min(array.shape[1] for array in arrays)
    if n < 2:
        return Estimate(value, n)
    draws = [
        lowest(_logs(tier), draw_means(array[None], stream=i)[:, 0])
        for i, (tier, array) in enumerate(zip(cells, arrays, strict=True))
    ]
    return Estimate(value, n, *interval(weights @ np.stack(draws)))


def _losses(cells: Sequence[CellSummary]) -> FloatArray:
    """Losses [shapes, seeds] of the seeds that all cells have."""
    by_seed = [dict(zip(cell.seeds, cell.seed_losses, strict=True)) for cell in cells]
    shared = sorted(set.intersection(*(set(losses) for losses in by_seed)))
    return np.array([[losses[seed] for seed in shared] for losses in by_seed])


def _notes(best: Sequence[TierBest], trend: Estimate | None) -> Iterable[str]:
    edges = [f"{parameter_count(tier.parameters)} ({tier.edge})" for tier in best if tier.edge]
    if edges:
        yield f"The best aspect ratio lies on an edge of the shapes trained, or is not determined: {some(edges)}."
    if edges and trend is not None:
        yield "The trend takes an edge for the best, so it may be steeper than shown."
