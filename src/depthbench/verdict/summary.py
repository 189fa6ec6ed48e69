"""From runs to numbers: the mean over seeds of every design and shape, and how each design's loss moves with depth.

Conventions: of the learning rates tried, each design and shape stands at the one with the lowest mean loss
over its seeds; one at which a seed diverged is worse than any other. Spread is the sample standard deviation over seeds
(n - 1). The *depth trend* is the least-squares slope of mean loss against log2(n_layers), in nats per token and doubling of
depth (negative: deeper is better); the *depth gain* is the loss at the widest shape minus the loss at the deepest (positive:
deeper is better). Both use only the shapes that every compared design has finished. They are point estimates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from depthbench.verdict.rows import ResultRow, Shape, short_names

CONVENTIONS = {
    "loss": "validation loss in nats per token, mean over seeds",
    "loss_sd": "sample standard deviation over seeds; null with one seed",
    "bits_per_byte": "mean over seeds, per UTF-8 byte of the predicted text",
    "learning_rate": "of those tried, the one with the lowest mean loss here; one at which a seed diverged is worse than any other",
    "slope": "least-squares slope of loss against log2(n_layers), nats per token per doubling of depth; below 0: deeper is better",
    "depth_gain": "loss at the widest minus loss at the deepest compared shape, nats per token; above 0: deeper is better",
    "own_parameters": "the design's own parameters relative to all other parameters of the model, embedding and head included",
}


@dataclass(frozen=True)
class CellSummary:
    """One design at one shape. `loss`, `loss_sd` (None with one seed) and the speeds are of the runs at `learning_rate`, one run
    a seed; where every learning rate saw a seed diverge, they and the learning rate are None and `seeds` is empty.
    """

    label: str
    shape: Shape
    learning_rate: float | None
    loss: float | None
    loss_sd: float | None
    bits_per_byte: float | None
    seeds: tuple[int, ...]
    learning_rates: tuple[float, ...]
    n_runs: int
    diverged_steps: tuple[int, ...]
    backbone_parameters: int
    total_parameters: int
    design_parameters: int
    tokens: int
    steps: int
    flops: float
    seconds: float | None
    tokens_per_second: float | None

    @property
    def own_share(self) -> float:
        """The design's own parameters relative to all others of the model."""
        return self.design_parameters / (self.total_parameters - self.design_parameters)


@dataclass(frozen=True)
class Trend:
    """How one design's loss moves with depth; `slope` and `gain` are None where fewer than two depths can be compared."""

    label: str
    slope: float | None
    gain: float | None
    best: CellSummary | None
    own_share: tuple[float, float]


@dataclass(frozen=True)
class Summary:
    """Designs and shapes in the order of the tables, their cells, and the trends over the `compared` shapes."""

    labels: tuple[str, ...]
    shapes: tuple[Shape, ...]
    cells: tuple[CellSummary, ...]
    compared: tuple[Shape, ...]
    trends: tuple[Trend, ...]

    def cell(self, label: str, shape: Shape) -> CellSummary | None:
        """The cell of a design and shape, or None if no run of it has ended."""
        return next((cell for cell in self.cells if (cell.label, cell.shape) == (label, shape)), None)

    @property
    def drawn(self) -> list[CellSummary]:
        """The cells with a loss."""
        return [cell for cell in self.cells if cell.loss is not None]


def aggregate(rows: Sequence[ResultRow]) -> Summary:
    """Summarise `rows`, which are those of one table in its order (see `one_table`)."""
    names = short_names([row.label for row in rows])
    groups: dict[tuple[str, Shape], list[ResultRow]] = {}
    for row in rows:
        groups.setdefault((names[row.label], row.shape), []).append(row)
    cells = tuple(_cell(label, group) for (label, _), group in groups.items())
    labels = tuple(dict.fromkeys(names.values()))
    shapes = tuple(sorted({row.shape for row in rows}, key=lambda shape: shape.order))
    compared = _compared(cells, shapes)
    trends = tuple(_trend(label, [cell for cell in cells if cell.label == label], compared) for label in labels)
    return Summary(labels, shapes, cells, compared, trends)


def _cell(label: str, rows: Sequence[ResultRow]) -> CellSummary:
    rates: dict[float, list[ResultRow]] = {}
    for row in rows:
        rates.setdefault(row.learning_rate, []).append(row)
    best = min(rates, key=lambda rate: _mean_loss(rates[rate]))
    runs = rates[best] if math.isfinite(_mean_loss(rates[best])) else []
    losses = [row.loss for row in runs if row.loss is not None]
    bits = [row.bits_per_byte for row in runs if row.bits_per_byte is not None]
    steps = sorted(row.diverged_step for row in rows if row.loss is None and row.diverged_step is not None)
    first = rows[0]
    return CellSummary(
        label=label,
        shape=first.shape,
        learning_rate=best if runs else None,
        loss=_mean(losses),
        loss_sd=statistics.stdev(losses) if len(losses) > 1 else None,
        bits_per_byte=_mean(bits) if len(bits) == len(runs) else None,
        seeds=tuple(sorted(row.seed for row in runs)),
        learning_rates=tuple(sorted(rates)),
        n_runs=len(rows),
        diverged_steps=tuple(steps),
        backbone_parameters=first.backbone_parameters,
        total_parameters=first.total_parameters,
        design_parameters=first.design_parameters,
        tokens=first.tokens,
        steps=first.steps,
        flops=first.flops,
        seconds=_mean([row.seconds for row in runs]),
        tokens_per_second=_mean([row.tokens_per_second for row in runs]),
    )


def _mean_loss(runs: Iterable[ResultRow]) -> float:
    """Mean over seeds; infinite as soon as one diverged."""
    return statistics.fmean(math.inf if row.loss is None else row.loss for row in runs)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _compared(cells: Sequence[CellSummary], shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes with a loss for every design that has a trend at all, that is losses at two depths or more.

    A design that has only begun is left out instead of taking the trend from the others.
    """
    finished: dict[str, set[Shape]] = {}
    for cell in cells:
        if cell.loss is not None:
            finished.setdefault(cell.label, set()).add(cell.shape)
    comparable = [found for found in finished.values() if len({shape.n_layers for shape in found}) > 1]
    if not comparable:
        return ()
    return tuple(shape for shape in shapes if all(shape in found for found in comparable))


def _trend(label: str, cells: Sequence[CellSummary], compared: Sequence[Shape]) -> Trend:
    losses = {cell.shape: cell.loss for cell in cells if cell.loss is not None}
    depths = {shape.n_layers for shape in compared}
    slope = gain = None
    if len(depths) > 1 and all(shape in losses for shape in compared):
        line = statistics.linear_regression([math.log2(shape.n_layers) for shape in compared], [losses[s] for s in compared])
        slope, gain = line.slope, losses[compared[0]] - losses[compared[-1]]
    shares = [cell.own_share for cell in cells]
    by_loss = {cell.loss: cell for cell in cells if cell.loss is not None}
    best = by_loss[min(by_loss)] if by_loss else None
    return Trend(label, slope, gain, best, (min(shares), max(shares)))
