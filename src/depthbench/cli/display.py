"""What `depthbench run` shows: a live table on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from depthbench.build import build_model
from depthbench.cli.output import make_table
from depthbench.cost.flops import training_flops
from depthbench.progress import duration
from depthbench.shape import ModelShape
from depthbench.study.cell import Cell, DesignChoice
from depthbench.study.watch import ELSEWHERE, Ended, Report, Running, Watcher
from depthbench.text import some

LINE_SECONDS = 10.0


class Work:
    """FLOPs of a study, for an ETA that knows that deep cells and rich designs take longer."""

    def __init__(self, todo: Sequence[Cell]) -> None:
        self.flops = {cell: _flops(cell) for cell in todo}
        self.done = 0.0
        self.began = time.monotonic()

    def add(self, cells: Sequence[Cell]) -> None:
        """More cells to do."""
        self.flops |= {cell: _flops(cell) for cell in cells}

    def finish(self, cell: Cell) -> None:
        """Count a cell that has ended."""
        self.done += self.flops.get(cell, 0.0)

    def eta(self, running: Sequence[Running]) -> str:
        """Time left at the rate since the start, or nothing while there is none."""
        now = self.done + sum(self.flops.get(r.cell, 0.0) * r.step / r.cell.recipe.steps for r in running)
        elapsed, total = time.monotonic() - self.began, sum(self.flops.values())
        return f"eta {duration((total - now) * elapsed / now)}" if 0 < now < total and elapsed > 2 else ""


def _flops(cell: Cell) -> float:
    return _flops_per_token(cell.design, cell.shape) * cell.tokens


@cache
def _flops_per_token(design: DesignChoice, shape: ModelShape) -> float:
    model = build_model(design.name, shape, device="meta", **dict(design.options))
    return training_flops(model.residual, 1)


class LineWatcher(Watcher):
    """One line when a cell ends, and one per interval in between."""

    def __init__(self) -> None:
        self.spoke = time.monotonic()
        self.total = self.ended_count = 0

    def begin(self, cells: Sequence[Cell], todo: Sequence[Cell], how: str) -> None:
        """Say how much there is to do."""
        self.work, self.total, self.ended_count = Work(todo), len(cells), len(cells) - len(todo)
        done = f", {self.ended_count} already done" if self.ended_count else ""
        start = f"{len(cells)} cells{done}; {how}"
        self.say(start if todo else f"all {len(cells)} cells are done")

    def more(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        """Say what a search asks for next."""
        self.work.add(todo)
        self.total += len(cells)
        self.ended_count += len(cells) - len(todo)
        self.say(f"{self.ended_count}/{self.total}  asked for next: {some([cell.label for cell in cells])}")

    def tick(self, running: Sequence[Running], report: Report, waiting: int) -> None:
        """A line per interval."""
        if time.monotonic() - self.spoke >= LINE_SECONDS:
            cells = "; ".join(f"{r.cell.label} step {r.step}/{r.cell.recipe.steps}{_loss(r)}" for r in running)
            waits = f"{waiting} wait" if waiting else ""
            self.say("  ".join(part for part in (f"{self.ended_count}/{self.total}", cells, waits, self.work.eta(running)) if part))

    def ended(self, item: Ended) -> None:
        """How a cell ended."""
        self.work.finish(item.cell)
        self.ended_count += item.status in ("done", "diverged", ELSEWHERE)
        error = f": {item.error}" if item.error else ""
        self.say(f"{self.ended_count}/{self.total}  {item.cell.label} {item.status}{error} in {duration(item.seconds)}")

    def note(self, cell: Cell, text: str) -> None:
        """Pass on a warning."""
        self.say(f"warning: {cell.label}: {text}")

    def tell(self, text: str) -> None:
        """Pass on what happened."""
        self.say(text)

    def say(self, line: str) -> None:
        """Write a line."""
        self.spoke = time.monotonic()
        print(line, file=sys.stderr, flush=True)


class LiveWatcher(LineWatcher):
    """The cells that run, with loss, speed and ETA, redrawn in place; lines of ended cells scroll above."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, refresh_per_second=4, transient=True)

    def begin(self, cells: Sequence[Cell], todo: Sequence[Cell], how: str) -> None:
        """Open the live display."""
        super().begin(cells, todo, how)
        if todo:
            self.live.start()

    def tick(self, running: Sequence[Running], report: Report, waiting: int) -> None:
        """Redraw."""
        table: Table = make_table("cell", "step", "loss", "tokens/s")
        for r in running:
            loss = f"{r.loss:.4f}" if r.loss is not None else ""
            table.add_row(escape(r.cell.label), f"{r.step}/{r.cell.recipe.steps}", loss, f"{r.tokens_per_second:,.0f}")
        line = f"{self.ended_count}/{self.total} cells  {waiting} waiting  {self.work.eta(running)}"
        self.live.update(Group(table, Text(line)))

    def close(self) -> None:
        """Take the live display away."""
        self.live.stop()

    def say(self, line: str) -> None:
        """Write a line above the table."""
        self.console.print(escape(line))


def _loss(running: Running) -> str:
    return "" if running.loss is None else f" loss {running.loss:.3f}"


def make_watcher() -> Watcher:
    """The one that fits where stderr goes."""
    return LiveWatcher() if sys.stderr.isatty() else LineWatcher()
