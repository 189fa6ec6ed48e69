"""From the runs of one table to numbers: every design and shape at its best learning rate, mean and spread over seeds.

Spread is the sample standard deviation over seeds (n - 1). Which learning rate is best is for `choose_rate` to say, so that a
search and a report agree; choosing the lowest of several losses flatters each cell a little, and all cells alike, since the grid is
the same for all. What follows from the numbers is in `verdicts`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from depthbench.verdict.rates import RateChoice, choose_rate
from depthbench.verdict.rows import ResultRow, Shape, columns, short_names

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
    a seed, whose losses are `seed_losses` in the order of `seeds`; where every learning rate saw a seed diverge, they and the
    learning rate are None, and `seeds` and `seed_losses` are empty. `choice` has every learning rate tried.
    """

    label: str
    shape: Shape
    d_ff: int
    choice: RateChoice
    loss: float | None
    loss_sd: float | None
    bits_per_byte: float | None
    seeds: tuple[int, ...]
    seed_losses: tuple[float, ...]
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
    def learning_rate(self) -> float | None:
        """The best of the learning rates tried."""
        return self.choice.chosen

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """All learning rates tried, from the lowest."""
        return tuple(item.rate for item in self.choice.tried)

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

    def d_ff_span(self, shape: Shape) -> tuple[int, int]:
        """The smallest and the largest `d_ff` in a column: they differ where it was narrowed to match totals."""
        widths = [cell.d_ff for cell in self.cells if cell.shape == shape]
        return min(widths), max(widths)


def aggregate(rows: Sequence[ResultRow]) -> Summary:
    """Summarise `rows`, which are those of one table in its order (see `tables`)."""
    names = short_names([row.label for row in rows])
    groups: dict[tuple[str, Shape], list[ResultRow]] = {}
    for row, shape in zip(rows, columns(rows), strict=True):
        groups.setdefault((names[row.label], shape), []).append(row)
    cells = tuple(_cell(label, shape, group) for (label, shape), group in groups.items())
    labels = tuple(dict.fromkeys(names.values()))
    shapes = tuple(sorted({cell.shape for cell in cells}, key=lambda shape: shape.order))
    compared = _compared(cells, shapes)
    trends = tuple(_trend(label, [cell for cell in cells if cell.label == label], compared) for label in labels)
    return Summary(labels, shapes, cells, compared, trends)


def _cell(label: str, shape: Shape, rows: Sequence[ResultRow]) -> CellSummary:
    losses: dict[float, dict[int, float | None]] = {}
    for row in rows:
        losses.setdefault(row.learning_rate, {})[row.seed] = row.loss
    choice = choose_rate(losses)
    runs = sorted((row for row in rows if row.learning_rate == choice.chosen), key=lambda row: row.seed)
    seed_losses = tuple(row.loss for row in runs if row.loss is not None)
    bits = [row.bits_per_byte for row in runs if row.bits_per_byte is not None]
    furthest = max(rows, key=lambda row: row.steps)  # a diverged run has fewer updates than its recipe says
    return CellSummary(
        label=label,
        shape=shape,
        d_ff=furthest.d_ff,
        choice=choice,
        loss=_mean(seed_losses),
        loss_sd=statistics.stdev(seed_losses) if len(seed_losses) > 1 else None,
        bits_per_byte=_mean(bits) if len(bits) == len(runs) else None,
        seeds=tuple(row.seed for row in runs),
        seed_losses=seed_losses,
        n_runs=len(rows),
        diverged_steps=tuple(sorted(row.diverged_step for row in rows if row.diverged_step is not None)),
        backbone_parameters=furthest.backbone_parameters,
        total_parameters=furthest.total_parameters,
        design_parameters=furthest.design_parameters,
        tokens=furthest.tokens,
        steps=furthest.steps,
        flops=furthest.flops,
        seconds=_mean([row.seconds for row in runs]),
        tokens_per_second=_mean([row.tokens_per_second for row in runs]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _compared(cells: Sequence[CellSummary], shapes: Sequence[Shape]) -> tuple[Shape, ...]:
    """The shapes with a loss for every design that can be compared: one with losses at two depths or more that diverges at no shape
    which another design finished.

    So neither a design that has only begun nor one that diverges takes the comparison from the others.
    """
    finished = _shapes_of(cell for cell in cells if cell.loss is not None)
    failed = _shapes_of(cell for cell in cells if cell.loss is None)
    begun = {label: found for label, found in finished.items() if len({shape.n_layers for shape in found}) > 1}
    alive = set().union(*finished.values())
    standing = [found for label, found in begun.items() if not failed.get(label, set()) & alive] or list(begun.values())
    return tuple(shape for shape in shapes if standing and all(shape in found for found in standing))


def _shapes_of(cells: Iterable[CellSummary]) -> dict[str, set[Shape]]:
    found: dict[str, set[Shape]] = {}
    for cell in cells:
        found.setdefault(cell.label, set()).add(cell.shape)
    return found


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
