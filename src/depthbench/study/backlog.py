"""What is left of a runner's work: the cells that are asked for and have no result in their folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depthbench.errors import UserError
from depthbench.study.cell import Cell
from depthbench.study.store import run_folder
from depthbench.study.watch import Ended, Report
from depthbench.study.work import Work


class Backlog:
    """Follows `work` as it grows with its results; finished cells and unreadable folders go straight into `report`."""

    def __init__(self, work: Work, out: Path, report: Report) -> None:
        self.work, self.out, self.report = work, out, report
        self.known: set[Cell] = set()
        self.wanted: Sequence[Cell] | None = None

    def expand(self) -> tuple[list[Cell], list[Cell]]:
        """Look up every cell that is asked for and not yet known, until nothing more follows from what is already done.

        Returns them, and those among them that are to be trained; each of these has its folder now.
        """
        found: list[Cell] = []
        todo: list[Cell] = []
        while (wanted := self.work.wanted()) is not self.wanted:
            self.wanted = wanted
            fresh = [cell for cell in wanted if cell not in self.known]
            self.known.update(fresh)
            found += fresh
            todo += [cell for cell in fresh if self._is_left(cell)]
        return found, todo

    def _is_left(self, cell: Cell) -> bool:
        """Whether the cell is to be trained. What cannot be read is a failure of that cell alone."""
        folder = run_folder(self.out, cell)
        try:
            folder.create(cell)
            result = folder.result()
        except UserError as error:
            self.report.ended.append(Ended(cell, "failed", str(error), 0.0))
            return False
        if result is None:
            return True
        self.report.already_done += 1
        self.work.record(cell, result["loss"])
        return False

    def record(self, cell: Cell) -> None:
        """Tell the work of the result of a cell; what follows from it is taken up when `expand` is next called."""
        result = run_folder(self.out, cell).result()
        assert result is not None
        self.work.record(cell, result["loss"])
