"""Designs against each other: the losses that can be paired, and the difference of every pair of designs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from depthbench.verdict.statistics import LEVEL, Estimate, FloatArray, difference, estimate, holm, level
from depthbench.verdict.summary import Summary

# For every design the losses [shapes] of every seed.
Losses = Mapping[str, Mapping[int, FloatArray]]


@dataclass(frozen=True)
class Pair:
    """Design `a` minus design `b`, on the `n` seeds that both have at all compared shapes.

    `gain` is the difference of their depth gains (above 0: `a` gains more), `level` that of their mean losses over the compared
    shapes (below 0: `a` is better). Their intervals are unadjusted; `gain_p` and `level_p` are adjusted by Holm's rule over all
    pairs of the table, each quantity by itself, and decide at 0.05 whether the pair differs. None with one seed.
    """

    a: str
    b: str
    n: int
    gain: Estimate
    level: Estimate
    gain_p: float | None = None
    level_p: float | None = None
    gain_differs: bool | None = None
    level_differs: bool | None = None


def compared_losses(summary: Summary) -> dict[str, dict[int, FloatArray]]:
    """For every design that finished the compared shapes, the losses [shapes] of every seed that it has at all of them.

    Empty where fewer than two depths are compared.
    """
    if len({shape.n_layers for shape in summary.compared}) < 2:
        return {}
    found = {}
    for label in summary.labels:
        cells = [summary.cell(label, shape) for shape in summary.compared]
        done = [cell for cell in cells if cell is not None and cell.loss is not None]
        if len(done) == len(cells):
            by_seed = [dict(zip(cell.seeds, cell.seed_losses, strict=True)) for cell in done]
            shared = sorted(set.intersection(*(set(losses) for losses in by_seed)))
            found[label] = {seed: np.array([losses[seed] for losses in by_seed]) for seed in shared}
    return found


def stack(losses: Mapping[int, FloatArray], seeds: Iterable[int]) -> FloatArray:
    """Losses as an array [shapes, seeds]."""
    return np.stack([losses[seed] for seed in seeds], axis=1)


def compare(losses: Losses) -> tuple[Pair, ...]:
    """All pairs of the designs in `losses` that share a seed."""
    found = []
    for a, b in itertools.combinations(losses, 2):
        shared = [seed for seed in losses[a] if seed in losses[b]]
        if shared:
            apart = stack(losses[a], shared) - stack(losses[b], shared)
            n_shapes = apart.shape[0]
            gain = estimate(apart, difference(0, -1, n_shapes))
            found.append(Pair(a, b, len(shared), gain, estimate(apart, level(n_shapes))))
    gains, levels = _adjusted([pair.gain for pair in found]), _adjusted([pair.level for pair in found])
    return tuple(_decided(pair, gain, of_level) for pair, gain, of_level in zip(found, gains, levels, strict=True))


def _adjusted(estimates: Sequence[Estimate]) -> list[float | None]:
    """Holm's p-values of those that have one, None for the others."""
    adjusted = iter(holm([item.p for item in estimates if item.p is not None]).tolist())
    return [None if item.p is None else next(adjusted) for item in estimates]


def _decided(pair: Pair, gain_p: float | None, level_p: float | None) -> Pair:
    if gain_p is None or level_p is None:
        return pair
    return replace(pair, gain_p=gain_p, level_p=level_p, gain_differs=gain_p <= LEVEL, level_differs=level_p <= LEVEL)
