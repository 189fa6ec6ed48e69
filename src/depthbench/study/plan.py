"""What a study would take: cells, exact parameters, tokens, FLOPs and an estimate of the time. Trains nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from depthbench.build import build_model, count_parameters
from depthbench.cost.flops import training_flops
from depthbench.study.cell import Cell

# Share of the rate of a large matrix product that the cells of `quick` reached on one CPU thread (benchmarks/README.md).
CPU_UTILISATION = 0.25


@dataclass(frozen=True)
class PlanRow:
    """All cells of one design and shape: `cells` runs of `tokens` tokens and `flops` FLOPs each."""

    design: str
    n_layers: int
    d_model: int
    d_ff: int
    aspect_ratio: float
    backbone_parameters: int
    design_parameters: int
    total_parameters: int
    cells: int
    steps: int
    tokens: int
    flops: float


def plan_rows(cells: Sequence[Cell]) -> list[PlanRow]:
    """One row a design and shape, counted on the meta device."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((str(cell.design), cell.shape.name), []).append(cell)
    return [_row(group) for group in groups.values()]


def _row(cells: list[Cell]) -> PlanRow:
    cell, options = cells[0], dict(cells[0].design.options)
    counts = count_parameters(cell.design.name, cell.shape, **options)
    residual = build_model(cell.design.name, cell.shape, device="meta", **options).residual
    return PlanRow(
        design=str(cell.design),
        n_layers=cell.shape.n_layers,
        d_model=cell.shape.d_model,
        d_ff=cell.shape.d_ff,
        aspect_ratio=cell.shape.aspect_ratio,
        backbone_parameters=counts.backbone,
        design_parameters=counts.design,
        total_parameters=counts.total,
        cells=len(cells),
        steps=cell.recipe.steps,
        tokens=cell.tokens,
        flops=training_flops(residual, cell.tokens),
    )


def total_flops(rows: Sequence[PlanRow]) -> float:
    """FLOPs of the whole study."""
    return sum(row.flops * row.cells for row in rows)


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
