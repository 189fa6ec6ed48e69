"""What a study would take: cells, exact parameters, tokens, FLOPs and an estimate of the time. Trains nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from depthbench.build import build_model, count_parameters
from depthbench.cost.flops import training_flops
from depthbench.errors import UserError
from depthbench.shape import ModelShape
from depthbench.study.matching import TOLERANCE, off_total
from depthbench.study.search import StudyWork

# Share of the rate of a large matrix product that the cells of `quick` reached on one CPU thread (benchmarks/README.md).
CPU_UTILISATION = 0.25


@dataclass(frozen=True)
class PlanRow:
    """All cells of one design and shape: `cells` runs (`most_cells` if a search is widened to its limit) of `steps` updates,
    `tokens` tokens and `flops` FLOPs each. `off_total` is the total relative to Pre-LN's at this depth and width; `matched` is
    False where `match="total"` could not bring it within its tolerance.
    """

    design: str
    n_layers: int
    d_model: int
    d_ff: int
    aspect_ratio: float
    backbone_parameters: int
    design_parameters: int
    total_parameters: int
    off_total: float
    matched: bool
    cells: int
    most_cells: int
    steps: int
    tokens: int
    flops: float


def plan_rows(work: StudyWork) -> list[PlanRow]:
    """One row a design and shape, counted on the meta device."""
    nominal = [shapes for shapes, _ in work.study.sets()]
    return [
        _row(work, row, column, nominal[row % len(nominal)][column])
        for row, groups in enumerate(work.groups)
        for column in range(len(groups))
    ]


def _row(work: StudyWork, row: int, column: int, nominal: ModelShape) -> PlanRow:
    group = work.groups[row][column]
    shape, options, cell = group.shape, dict(group.design.options), group.cell(work.study.learning_rates[0], work.study.seeds[0])
    counts = count_parameters(group.design.name, shape, **options)
    residual = build_model(group.design.name, shape, device="meta", **options).residual
    off = off_total(group.design, shape, nominal)
    least, most = work.cell_counts(row, column)
    return PlanRow(
        design=str(group.design),
        n_layers=shape.n_layers,
        d_model=shape.d_model,
        d_ff=shape.d_ff,
        aspect_ratio=shape.aspect_ratio,
        backbone_parameters=counts.backbone,
        design_parameters=counts.design,
        total_parameters=counts.total,
        off_total=off,
        matched=work.study.match != "total" or abs(off) <= TOLERANCE,
        cells=least,
        most_cells=most,
        steps=group.recipe.steps,
        tokens=cell.tokens,
        flops=training_flops(residual, cell.tokens),
    )


def refuse_unmatched(work: StudyWork) -> None:
    """Raise `UserError` for the first design that `match="total"` cannot bring to Pre-LN's total."""
    for row in plan_rows(work) if work.study.match == "total" else ():
        if not row.matched:
            raise UserError(
                f"{row.design} at {row.n_layers} × {row.d_model} stays {row.off_total:+.1%} from Pre-LN's total whatever its d_ff;"
                " leave it out, or use --match shape"
            )


def total_flops(rows: Sequence[PlanRow], most: bool = False) -> float:
    """FLOPs of the whole study, or of the most that its searches may ask for."""
    return sum(row.flops * (row.most_cells if most else row.cells) for row in rows)


def measured_matmul_rate(seconds: float = 0.2) -> float:
    """FLOPs a second of a 512³ fp32 matrix product on one thread of this machine."""
    threads, size, done = torch.get_num_threads(), 512, 0
    torch.set_num_threads(1)
    try:
        a, b = torch.randn(size, size), torch.randn(size, size)
        a @ b
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            a @ b
            done += 1
        return 2.0 * size**3 * done / (time.monotonic() - began)
    finally:
        torch.set_num_threads(threads)
