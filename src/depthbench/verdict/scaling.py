"""A ladder of budgets: how loss falls with parameters for every design and aspect ratio, and where the best aspect ratio moves.

Parameters are total ones: embedding, head and the design's own included. The tiers of a ladder have nearly the same aspect ratios;
shapes of different tiers within a factor 1.2 are one *class*. Intervals are drawn from the noise over seeds; with one seed there
are none, and only the lack of fit says something. A law may be asked between half the smallest and twice the largest model that it
was fitted to, and only if it was fitted to three tiers or more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from depthbench.errors import UserError
from depthbench.text import parameter_count, ratio_text
from depthbench.verdict import power_law
from depthbench.verdict.aspect import AspectMove, move
from depthbench.verdict.statistics import Estimate, FloatArray, interval
from depthbench.verdict.summary import CellSummary, Summary, aggregate
from depthbench.verdict.tables import NEXT_BUDGET, Table

CLASS_WIDTH = 1.2
TIERS_TO_PREDICT = 3
REACH = 2.0


@dataclass(frozen=True)
class TierPoint:
    """What a law was fitted to: the parameters of one tier and the losses of the `n` shared seeds."""

    parameters: int
    losses: tuple[float, ...]


@dataclass(frozen=True)
class ScalingLaw:
    """Loss against parameters of one design at one class of aspect ratios: `form` with N in units of `reference`.

    `E` is None in the form without it. The numbers have intervals with two seeds or more. `rms` is what the law leaves of the
    means, None where it threads them. `range` are the parameters that `predict` accepts, None with fewer than three tiers.
    """

    label: str
    aspect_ratio: float
    form: str
    E: Estimate | None
    A: Estimate
    alpha: Estimate
    reference: float
    points: tuple[TierPoint, ...]
    n: int
    rms: float | None
    range: tuple[float, float] | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """Laws by design and class, from wide to deep, and how the best aspect ratio of every design moves."""

    laws: tuple[ScalingLaw, ...]
    moves: tuple[AspectMove, ...]
    parameters: str
    notes: tuple[str, ...]


def scale_laws(tables: Sequence[Table]) -> Ladder | None:
    """The ladder that `tables` (see `verdict.tables`) make up, or None if they have not two different budgets."""
    sizes = [min(row.total_parameters - row.design_parameters for row in table.rows) for table in tables]
    apart = [large > NEXT_BUDGET * small for small, large in itertools.pairwise(sizes)]
    if not any(apart):
        return None
    if len({table.data_fingerprint for table in tables}) > 1:
        return Ladder((), (), "total", ("The tiers were trained on different data, so no law is fitted through them.",))
    if not all(apart):
        return Ladder((), (), "total", ("One budget has several tables, so which tiers belong together is not known.",))
    tiers = [aggregate(table.rows) for table in tables]
    classes = aspect_classes(tiers)
    labels = list(dict.fromkeys(label for tier in tiers for label in tier.labels))
    laws = [law for label in labels for ratio in classes for law in _law(label, ratio, _cells(tiers, label, ratio))]
    moves = [found for label in labels if (found := move(label, tiers))]
    return Ladder(tuple(laws), tuple(moves), "total", tuple(_notes(laws, tiers)))


def aspect_classes(tiers: Sequence[Summary]) -> list[float]:
    """The aspect ratios that name the classes, from wide to deep: those of the tier with the most shapes, of equals the largest."""
    richest = max(reversed(tiers), key=lambda tier: len(tier.shapes))
    return sorted({shape.aspect_ratio for shape in richest.shapes}, reverse=True)


def _cells(tiers: Sequence[Summary], label: str, ratio: float) -> list[CellSummary]:
    """For every tier that has one with a loss, the design's cell nearest to the aspect ratio, if it is near enough."""
    found = []
    for tier in tiers:
        cells = [cell for cell in tier.drawn if cell.label == label]
        near = min(cells, key=lambda cell: _off(cell, ratio), default=None)
        if near is not None and _off(near, ratio) <= math.log(CLASS_WIDTH):
            found.append(near)
    return found


def _off(cell: CellSummary, ratio: float) -> float:
    return abs(math.log(cell.shape.aspect_ratio / ratio))


def _law(label: str, ratio: float, cells: Sequence[CellSummary]) -> Iterable[ScalingLaw]:
    """The law through one cell a tier; none through fewer than two or without a seed that all have."""
    seeds = sorted(set.intersection(*(set(cell.seeds) for cell in cells))) if cells else []
    if len(cells) < 2 or not seeds:
        return
    points = tuple(TierPoint(cell.total_parameters, _of_seeds(cell, seeds)) for cell in cells)
    parameters, losses = _arrays(points)
    value = power_law.fit(parameters, losses.mean(axis=1))
    draws = power_law.draw_fits(parameters, losses) if len(seeds) > 1 else None
    floor, at_reference, alpha = (_estimate(value, draws, at, len(seeds)) for at in range(3))
    with_floor = len(cells) >= power_law.TIERS_FOR_FLOOR
    yield ScalingLaw(
        label=label,
        aspect_ratio=ratio,
        form=power_law.WITH_FLOOR if with_floor else power_law.WITHOUT_FLOOR,
        E=floor if with_floor else None,
        A=at_reference,
        alpha=alpha,
        reference=power_law.reference(parameters),
        points=points,
        n=len(seeds),
        rms=power_law.left_over(parameters, losses.mean(axis=1)),
        range=(float(parameters.min()) / REACH, float(parameters.max()) * REACH) if len(cells) >= TIERS_TO_PREDICT else None,
        notes=tuple(_law_notes(value, with_floor)),
    )


def _of_seeds(cell: CellSummary, seeds: Sequence[int]) -> tuple[float, ...]:
    by_seed = dict(zip(cell.seeds, cell.seed_losses, strict=True))
    return tuple(by_seed[seed] for seed in seeds)


def _arrays(points: Sequence[TierPoint]) -> tuple[FloatArray, FloatArray]:
    return np.array([float(point.parameters) for point in points]), np.array([point.losses for point in points])


def _estimate(value: FloatArray, draws: FloatArray | None, at: int, n: int) -> Estimate:
    if draws is None:
        return Estimate(float(value[at]), n)
    return Estimate(float(value[at]), n, *interval(draws[:, at]))


def _law_notes(value: FloatArray, with_floor: bool) -> Iterable[str]:
    floor, _, alpha = value
    if with_floor and (floor == 0 or power_law.at_edge(alpha)):
        at = "E lies at its bound 0" if floor == 0 else "alpha lies at the edge of its range"
        yield f"{at}: these tiers do not tell the two apart."


def predict(law: ScalingLaw, parameters: float) -> Estimate:
    """The expected loss at `parameters`, with the interval of the fitted curve where there are seeds (not of a single run).

    Raises `UserError` outside `law.range`, or if the law has none.
    """
    if law.range is None:
        raise UserError(
            f"the law of {law.label} at aspect ratio {ratio_text(law.aspect_ratio)} rests on {len(law.points)} tiers and predicts"
            f" nothing; {TIERS_TO_PREDICT} are needed"
        )
    low, high = law.range
    if not low <= parameters <= high:
        asked, smallest, largest = (parameter_count(int(count)) for count in (parameters, low, high))
        raise UserError(
            f"{asked} parameters are outside {smallest} to {largest}, half the smallest to twice the largest model that the law of"
            f" {law.label} was fitted to; train a tier nearer to it"
        )
    sizes, losses = _arrays(law.points)
    ratio = parameters / law.reference
    value = float(power_law.evaluate(power_law.fit(sizes, losses.mean(axis=1)), ratio))
    if law.n < 2:
        return Estimate(value, law.n)
    return Estimate(value, law.n, *interval(power_law.evaluate(power_law.draw_fits(sizes, losses), ratio)))


def _notes(laws: Sequence[ScalingLaw], tiers: Sequence[Summary]) -> Iterable[str]:
    yield (
        f"Total parameters; shapes of different tiers within a factor {CLASS_WIDTH:g} of aspect ratio are taken together; E is"
        f" fitted only to {power_law.TIERS_FOR_FLOOR} tiers or more."
    )
    yield (
        f"A law predicts from {TIERS_TO_PREDICT} tiers on, between half its smallest and twice its largest model. The tiers must"
        " share a recipe but for the updates; that is not checked."
    )
    spread = max(max(sizes) / min(sizes) - 1 for tier in tiers if (sizes := [cell.total_parameters for cell in tier.cells]))
    yield f"Within a tier total parameters differ by up to {spread:.1%}; best aspect ratios are not corrected for that."
    if laws and max(law.n for law in laws) < 2:
        yield "One seed: no intervals. What a law leaves of the losses is its lack of fit, not the noise of a run."
