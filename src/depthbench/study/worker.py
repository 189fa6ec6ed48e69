"""A worker process: takes run folders from its parent one at a time and trains them.

It speaks JSON lines. In: `{"run": FOLDER, "data": FOLDER, "execution": {…}}` trains a cell, `{"stop": true}` (or the end of the
input, which is what a dead parent looks like) saves the current run and ends. Out: events `step`, `note` and `end`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from depthbench.data.batches import TokenData
from depthbench.errors import UserError
from depthbench.study.events import Events
from depthbench.study.ranks import train_run
from depthbench.train.execution import Execution
from depthbench.train.loop import StepReport

REPORT_SECONDS = 0.25


class Worker:
    """The state of one worker: what it is to do, and whether it was asked to stop."""

    def __init__(self, events: Events) -> None:
        self.say, self.stop = events.say, events.stop
        self.orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.reported = 0.0
        self.tokens: dict[Path, TokenData] = {}

    def listen(self, orders: TextIO) -> None:
        """Pass orders on; the end of input is an order to stop."""
        for line in orders:
            order = json.loads(line)
            if order.get("stop"):
                break
            self.orders.put(order)
        self.stop.set()
        self.orders.put(None)

    def work(self) -> None:
        """Train what is ordered until told to stop."""
        while (order := self.orders.get()) is not None and not self.stop.is_set():
            status, error = "failed", ""
            with log_to(Path(order["run"]) / "log.txt"):
                try:
                    status = self.train(order)
                except UserError as problem:
                    error = str(problem)
                except Exception as problem:
                    error = f"{type(problem).__name__}: {problem}"
            self.say("end", status=status, error=error)

    def train(self, order: dict[str, Any]) -> str:
        """Train one run folder."""
        return train_run(
            Path(order["run"]),
            Path(order["data"]),
            Execution(**order["execution"]),
            opened=self.opened,
            report=self.report,
            notify=lambda text: self.say("note", text=text),
            should_stop=self.stop.is_set,
        )

    def opened(self, folder: Path) -> TokenData:
        """Token files, checked once."""
        if folder not in self.tokens:
            self.tokens[folder] = TokenData.open(folder)
        return self.tokens[folder]

    def report(self, step: StepReport) -> None:
        """Tell the parent, though not more often than it could show."""
        now = time.monotonic()
        if now - self.reported >= REPORT_SECONDS or step.step == step.steps:
            self.reported = now
            self.say("step", step=step.step, loss=step.loss, tokens_per_second=step.tokens_per_second)


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send what libraries and users' designs print into the run's own log, by file descriptor, so that crashes land there too."""
    with contextlib.suppress(OSError), open(path, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    yield
    sys.stdout.flush()
    sys.stderr.flush()


def main() -> None:
    """Run as `python -m depthbench.study.worker`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    worker = Worker(Events(os.fdopen(os.dup(1), "w", encoding="utf-8")))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    threading.Thread(target=worker.listen, args=(sys.stdin,), daemon=True).start()
    worker.say("ready")
    worker.work()


if __name__ == "__main__":
    main()
