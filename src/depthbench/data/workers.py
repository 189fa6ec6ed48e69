"""Work spread over processes, results in order. Torch is not imported, so a worker starts in about the time numpy needs.

Python's own pools leave something to be desired here: after Ctrl-C they print the tracebacks of workers and finish what is queued,
and after a kill their workers stay behind. These workers end at once with whoever started them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from depthbench.errors import UserError

DONE, TOLD, FAILED = "done", "told", "failed"

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int, hear: Callable[[int, Any], None] | None = None
) -> Generator[Result, None, None]:
    """`function` of each job, in the order of the jobs, by up to `workers` processes (in this one if one is enough).

    What a job tells on its way (see `tell`) goes to `hear`, with the number of the job. An exception in a worker is raised here.
    Raises `UserError` if a worker dies.
    """
    global _speak
    workers = min(workers, len(jobs))
    if workers < 2:
        for number, job in enumerate(jobs):
            _speak = partial(hear, number) if hear else None
            try:
                result = function(job)
            finally:
                _speak = None
            yield result
        return
    with crew(function, workers) as connections:
        yield from collect(jobs, connections, hear)


_speak: Callable[[Any], None] | None = None


def tell(value: Any) -> None:
    """Called by a job: say something, such as how far it is, to whoever waits for its result."""
    if _speak:
        _speak(value)


def collect(jobs: Sequence[Any], connections: list[Connection], hear: Callable[[int, Any], None] | None = None) -> Iterator[Any]:
    """Keep every worker busy until the jobs run out, and yield the results in order."""
    queue = iter(enumerate(jobs))
    running: dict[Connection, int] = {}
    done: dict[int, Any] = {}

    def give(connection: Connection) -> None:
        for number, job in queue:
            connection.send(job)
            running[connection] = number
            return

    def take(connection: Connection) -> None:
        kind, content = connection.recv()
        if kind == TOLD:
            if hear:
                hear(running[connection], content)
            return
        if kind == FAILED:
            raise content
        done[running.pop(connection)] = content
        give(connection)

    try:
        for connection in connections:
            give(connection)
        for number in range(len(jobs)):
            while number not in done:
                for connection in cast(list[Connection], wait(list(running))):
                    take(connection)
            yield done.pop(number)
    except (EOFError, BrokenPipeError, ConnectionResetError) as gone:
        raise UserError("a worker process died (out of memory?); repeat to continue, perhaps with fewer workers") from gone


@contextmanager
def crew(function: Callable[[Any], Any], workers: int) -> Iterator[list[Connection]]:
    """Start `workers` processes that answer jobs with results; end them on leaving, whatever they are doing."""
    context = multiprocessing.get_context("spawn")  # not fork: safe whatever threads the caller runs
    processes, connections = [], []
    try:
        with interrupts_blocked():
            for _ in range(workers):
                mine, theirs = context.Pipe()
                process = context.Process(target=serve, args=(function, theirs), daemon=True)
                process.start()
                theirs.close()  # so that a worker's end is seen as the end of its connection
                processes.append(process)
                connections.append(mine)
        yield connections
    finally:
        for process in processes:
            process.terminate()
        for process, connection in zip(processes, connections, strict=True):
            process.join()
            connection.close()


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside never see Ctrl-C: it is for this process, which sees it afterwards, and ends them."""
    resource_tracker.ensure_running()  # its start would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """What a worker does: jobs come in; what it tells, and the result or the error, go out."""
    global _speak
    threading.Thread(target=end_with_parent, daemon=True).start()
    _speak = lambda value: connection.send((TOLD, value))  # noqa: E731 (a global of the module, not a name for a function)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = connection.recv()
            try:
                reply = (DONE, function(job))
            except Exception as error:
                reply = (FAILED, error)
            connection.send(reply)


def end_with_parent() -> None:
    """Wait for the parent to end, then end this process, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
