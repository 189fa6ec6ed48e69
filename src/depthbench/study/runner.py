"""Running a study on this machine: a few worker processes, one cell each at a time.

A failure is recorded and the rest carried on; a worker that dies takes only its cell down; Ctrl-C saves what runs and ends; a
second run continues. Two runners may share a folder: a cell is trained by whoever claims it, and the other waits for its result.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any

from depthbench.errors import UserError
from depthbench.study.backlog import Backlog
from depthbench.study.cell import Cell
from depthbench.study.store import run_folder
from depthbench.study.train_cell import CLAIMED, record_failure
from depthbench.study.watch import ELSEWHERE, FINISHED, Ended, Report, Running, Watcher
from depthbench.study.work import Work
from depthbench.train.execution import Execution

POLL_SECONDS = 0.2
OTHERS_POLL_SECONDS = 2.0
STOP_SECONDS = 60.0
FALSE_STARTS = 3  # workers that may die before they take a cell, a kill or a lack of memory, until the runner gives up


class Process:
    """A worker process and the cell it is training."""

    def __init__(self, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "depthbench.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops the workers in order
        )
        self.running: Running | None = None
        self.started = self.free = False  # free: it has started up, and has no order
        self.began = 0.0
        self.buffer = b""

    @property
    def output(self) -> IO[bytes]:
        """Where its events come from."""
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, order: dict[str, Any]) -> None:
        """Give it an order; a dead worker is noticed when its output ends."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that have arrived; the last one is `{"event": "dead"}` if the process is gone."""
        chunk = os.read(self.output.fileno(), 1 << 16)
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
        if not chunk:
            yield {"event": "dead"}

    def close(self) -> int:
        """Wait for its end, however it comes. Returns the exit code."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            return self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Runner:
    """Trains what `work` asks for in `out`, with `workers` processes of `execution.threads` threads each."""

    def __init__(
        self, work: Work, data: Path, out: Path, *, workers: int, execution: Execution, watcher: Watcher | None = None
    ) -> None:
        self.work, self.data, self.out, self.execution = work, data, out, execution
        self.n_workers = workers
        self.watcher = watcher or Watcher()
        self.report = Report()
        self.backlog = Backlog(work, out, self.report)
        self.stopping = False
        self.processes: list[Process] = []
        self.selector = selectors.DefaultSelector()
        self.queue: list[Cell] = []
        self.elsewhere: list[Cell] = []  # claimed by another runner
        self.looked_elsewhere = 0.0
        self.false_starts = 0

    def run(self) -> Report:
        """Train everything that has no result yet. Returns when all cells have ended, or after Ctrl-C or SIGTERM."""
        asked, todo = self._expand()
        n = min(self.n_workers, len(todo))
        self.watcher.begin(asked, todo, f"starting {n} worker{'s' * (n != 1)}")
        with self._signals():
            try:
                self._grow()
                while self.processes:
                    self._turn()
            finally:
                for process in list(self.processes):
                    process.process.kill()
                    process.close()
                self.selector.close()
                self.watcher.close()
        self.report.interrupted = self.stopping
        return self.report

    def _expand(self) -> tuple[list[Cell], list[Cell]]:
        """The cells that are asked for and not yet known, and those of them to train, which go into the queue."""
        fresh, todo = self.backlog.expand()
        self.queue += todo
        self.queue.sort(key=_size, reverse=True)  # the longest first, so that no worker is left alone with it in the end
        return fresh, todo

    def _grow(self) -> None:
        """Take up what follows from the latest results, and keep as many workers as there are cells for."""
        fresh, todo = self._expand()
        if fresh:
            self.watcher.more(fresh, todo)
        idle = sum(process.running is None for process in self.processes)
        for _ in range(min(self.n_workers - len(self.processes), len(self.queue) - idle)):
            self._start_worker()
        for process in self.processes:
            self._next(process)

    def _start_worker(self) -> None:
        process = Process(self.execution.threads)
        self.processes.append(process)
        self.selector.register(process.output, selectors.EVENT_READ, process)

    def _turn(self) -> None:
        """Handle what has arrived, and show how things stand."""
        for key, _ in self.selector.select(POLL_SECONDS):
            for event in key.data.events():
                self._handle(key.data, event)
        self._look_elsewhere()
        if not self.stopping:
            self._grow()
        self._send_home()
        self.watcher.tick([p.running for p in self.processes if p.running], self.report, len(self.queue) + len(self.elsewhere))

    def _handle(self, process: Process, event: dict[str, Any]) -> None:
        kind, running = event["event"], process.running
        if kind == "step" and running:
            running.step, running.loss = event["step"], event["loss"]
            running.tokens_per_second = event["tokens_per_second"]
        elif kind == "note" and running:
            self.watcher.note(running.cell, event["text"])
        elif kind == "end" and running:
            self._finish(process, event["status"], event["error"])
            self._next(process)
        elif kind == "ready":
            process.started = process.free = True
            self._next(process)
        elif kind == "dead":
            self._bury(process)

    def _finish(self, process: Process, status: str, error: str) -> None:
        assert process.running is not None
        cell, process.running, process.free = process.running.cell, None, True
        if status == CLAIMED:
            self.elsewhere.append(cell)
            return
        item = Ended(cell, status, error, time.monotonic() - process.began)
        self.report.ended.append(item)
        self.watcher.ended(item)
        if status in FINISHED:
            self.backlog.record(cell)

    def _next(self, process: Process) -> None:
        """Give a free worker the next cell, if there is one."""
        if process.free and not self.stopping and (cell := self._pop()) is not None:
            process.running, process.free, process.began = Running(cell), False, time.monotonic()
            folder = run_folder(self.out, cell).path
            process.send({"run": str(folder), "data": str(self.data), "execution": asdict(self.execution)})

    def _send_home(self) -> None:
        """End the free workers once nothing runs, waits, or may follow from a cell that runs here or elsewhere."""
        busy = self.queue or self.elsewhere or any(process.running for process in self.processes)
        for process in self.processes:
            if process.free and (self.stopping or not busy):
                process.free = False
                process.send({"stop": True})

    def _pop(self) -> Cell | None:
        """The next cell that has no result yet; another runner may have been faster."""
        while self.queue:
            cell = self.queue.pop(0)
            if run_folder(self.out, cell).result() is None:
                return cell
            self._done_elsewhere(cell)
        return None

    def _done_elsewhere(self, cell: Cell) -> None:
        self.report.already_done += 1
        self.watcher.ended(Ended(cell, ELSEWHERE, "", 0.0))
        self.backlog.record(cell)

    def _look_elsewhere(self) -> None:
        """Cells that another runner holds: count those it has finished, take those it has dropped."""
        if time.monotonic() - self.looked_elsewhere < OTHERS_POLL_SECONDS:
            return
        self.looked_elsewhere = time.monotonic()
        for cell in list(self.elsewhere):
            folder = run_folder(self.out, cell)
            if folder.result() is not None:
                self.elsewhere.remove(cell)
                self._done_elsewhere(cell)
            elif not folder.is_claimed():
                self.elsewhere.remove(cell)
                self.queue.append(cell)

    def _bury(self, process: Process) -> None:
        """A worker's output has ended: normal after a stop; otherwise it died, with its cell if it had one."""
        self.selector.unregister(process.output)
        self.processes.remove(process)
        code = process.close()
        if process.running is not None:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            error = f"the worker died ({how}); its last words are in log.txt"
            record_failure(run_folder(self.out, process.running.cell), RuntimeError(error))
            self._finish(process, "failed", error)
        self.false_starts += not process.started
        if self.false_starts > FALSE_STARTS and not self.stopping:
            raise UserError(f"worker processes die before they start (exit code {code}); try `python -m depthbench.study.worker`")
        if self.queue and not self.stopping and len(self.processes) < self.n_workers:
            self._start_worker()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM lets every worker save and end; a second Ctrl-C ends at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True
            for process in self.processes:
                process.send({"stop": True})

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _size(cell: Cell) -> float:
    """Rough work of a cell, for ordering alone: deep cells run longer than their FLOPs say."""
    return float(cell.tokens * cell.shape.backbone_parameters * (1 + cell.shape.n_layers / 8))
