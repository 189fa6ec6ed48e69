"""One single-threaded worker a core, or one worker with all cores? Two ways to train the same small study.

Both ways go through the runner of `depthbench run`, in turns, each time in an empty folder. What is compared is how fast cells are
trained once the workers have started, since a study of any length starts them once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common import Spread, describe, machine, need_positive, run

import depthbench
from depthbench.cli.output import console, make_table, print_json
from depthbench.cli.setup import cores, pin
from depthbench.data import TokenData, prepare
from depthbench.errors import UserError
from depthbench.progress import Progress
from depthbench.study.catalogue import find_study
from depthbench.study.cell import Cell
from depthbench.study.override import Overrides, override
from depthbench.study.runner import Runner
from depthbench.study.watch import Ended, Watcher
from depthbench.study.work import FixedWork
from depthbench.train.execution import Execution

WHOLE = "whole study"


@dataclass(frozen=True)
class Options:
    """A study's cells trained by single-threaded workers side by side, and by one worker with as many threads."""

    study: str = "quick"
    """A study of the catalogue, or my_study.py:study."""
    steps: int = 10
    """Updates of every cell."""
    validation_windows: int = 16
    """Windows to validate on."""
    cores: int = 0
    """Workers of the first way, threads of the second; 0 for the cores of this machine."""
    rounds: int = 5
    """Rounds, in each of which both ways have one turn."""
    json: bool = False
    """Print JSON."""


@dataclass
class Stopwatch(Watcher):
    """Seconds of every cell, and of all from the first that began to the last that ended; starting the workers is left out."""

    cells: list[Ended] = field(default_factory=list)
    began: float = float("inf")
    last: float = 0.0

    def ended(self, item: Ended) -> None:
        self.cells.append(item)
        self.last = time.monotonic()
        self.began = min(self.began, self.last - item.seconds)


@dataclass(frozen=True)
class Row:
    """The cells of one shape, or of the whole study: tokens per second of all workers together, by way, and their ratio."""

    what: str
    many: Spread
    one: Spread
    ratio: Spread


def train(cells: Sequence[Cell], data: Path, workers: int, threads: int) -> dict[str, float]:
    """Train all cells in an empty folder. Returns tokens per second by shape and for the whole study.

    A shape's rate is that of one worker times the number of workers: it has no share in the end of the study, when the last cell
    may leave workers idle. The whole study has.
    """
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as out:
        report = Runner(
            FixedWork(cells), data, Path(out), workers=workers, execution=Execution(threads=threads), watcher=watch
        ).run()
    if report.interrupted:
        raise KeyboardInterrupt
    for item in report.ended:
        if item.status != "done":
            raise UserError(f"{item.cell.label} {item.status}: {item.error or 'no rates without it'}")
    rates = {WHOLE: sum(cell.tokens for cell in cells) / (watch.last - watch.began)}
    for shape in dict.fromkeys(cell.shape for cell in cells):
        own = [item for item in watch.cells if item.cell.shape == shape]
        rates[shape.name] = workers * sum(item.cell.tokens for item in own) / sum(item.seconds for item in own)
    return rates


def measure(cells: Sequence[Cell], data: Path, n: int, rounds: int) -> Iterator[Row]:
    """Both ways in turns, each going first every other round."""
    rates: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with Progress("workers", 2 * rounds) as progress:
        for number in range(rounds):
            for many in (True, False) if number % 2 == 0 else (False, True):
                rates[many].append(train(cells, data, *((n, 1) if many else (1, n))))
                progress.update(len(rates[True]) + len(rates[False]), f"{n} workers" if many else f"{n} threads")
    for what in [*(shape.name for shape in dict.fromkeys(cell.shape for cell in cells)), WHOLE]:
        many, one = ([turn[what] for turn in rates[way]] for way in (True, False))
        yield Row(what, Spread.of(many), Spread.of(one), Spread.of([a / b for a, b in zip(many, one, strict=True)]))


def main(options: Options) -> None:
    need_positive(options, "rounds")
    n = options.cores or cores()
    if n < 2:
        raise UserError(f"--cores must be at least 2 for there to be two ways, got {n}")
    where = machine(n)
    study = override(find_study(options.study), Overrides(steps=options.steps, validation_windows=options.validation_windows))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"  # any text will do: speed does not depend on it
        prepare([str(Path(depthbench.__file__).parent)], data, tokenizer=study.tokenizer, validation_fraction=0.2, quiet=True)
        cells = study.cells(pin("depthbench", TokenData.open(data)))
        rows = list(measure(cells, data, n, options.rounds))
    if options.json:
        print_json({"machine": where, "options": asdict(options), "rows": [asdict(row) for row in rows]})
        return
    print(describe(where))
    print(f"{study.name}: {len(cells)} cells of {options.steps} updates; medians and quartiles over {options.rounds} rounds\n")
    show(rows, n)


def show(rows: Sequence[Row], n: int) -> None:
    """The table."""
    table = make_table("tokens/s", f"{n} workers × 1 thread", f"1 worker × {n} threads", "ratio")
    for row in rows:
        table.add_row(row.what, row.many.text(",.0f"), row.one.text(",.0f"), row.ratio.text())
    console().print(table)


if __name__ == "__main__":
    try:
        run(Options, main)
    except KeyboardInterrupt:
        sys.exit(130)
