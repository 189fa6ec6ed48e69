"""What a runner tells: which cells run and how they ended, to whoever watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from depthbench.study.cell import Cell

ELSEWHERE = "done elsewhere"
FINISHED = ("done", "diverged")


@dataclass
class Running:
    """A cell in a worker's hands."""

    cell: Cell
    step: int = 0
    loss: float | None = None
    tokens_per_second: float = 0.0


@dataclass(frozen=True)
class Ended:
    """A cell that has ended: "done", "diverged", "stopped", "failed" with its error, or "done elsewhere" by another runner."""

    cell: Cell
    status: str
    error: str
    seconds: float


@dataclass
class Report:
    """What a runner did. `left` are the cells it did not finish, because it was stopped or they failed."""

    ended: list[Ended] = field(default_factory=list)
    already_done: int = 0
    interrupted: bool = False

    def count(self, status: str) -> int:
        """How many cells ended so."""
        return sum(item.status == status for item in self.ended)


class Watcher:
    """Hears what a runner does. The base class hears and says nothing."""

    def begin(self, cells: Sequence[Cell], todo: Sequence[Cell], how: str) -> None:
        """Before the first cell: all cells asked for so far, those to train, and `how`, such as "starting 2 workers"."""

    def more(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        """A search asks for more cells: these, of which `todo` are to be trained."""

    def tick(self, running: Sequence[Running], report: Report, waiting: int) -> None:
        """Several times a second."""

    def ended(self, item: Ended) -> None:
        """A cell has ended."""

    def note(self, cell: Cell, text: str) -> None:
        """Something unusual happened in a cell."""

    def tell(self, text: str) -> None:
        """Something happened that concerns the study."""

    def close(self) -> None:
        """The runner has come to its end, however it did."""
