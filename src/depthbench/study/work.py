"""What a runner is to train: cells that are known from the start, or that a search asks for as results come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from depthbench.study.cell import Cell


class Work(Protocol):
    """Asked by every runner, local or on a cluster."""

    def wanted(self) -> Sequence[Cell]:
        """Every cell asked for so far, finished ones included, each once, in a stable order. Grows after `record`."""

    def record(self, cell: Cell, loss: float | None) -> None:
        """A cell has its result: its validation loss in nats per token, or None if it diverged."""


class FixedWork:
    """A list of cells, whatever their results."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = list(cells)

    def wanted(self) -> Sequence[Cell]:
        """The list."""
        return self.cells

    def record(self, cell: Cell, loss: float | None) -> None:
        """Nothing follows from a result."""
