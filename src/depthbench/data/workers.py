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
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from depthbench.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Generator[Result, None, None]:
    """`function` of each job, in the order of the jobs, by up to `workers` processes (in this one if one is enough).

    An exception in a worker is raised here. Raises `UserError` if a worker dies.
    """
    workers = min(workers, len(jobs))
    if workers < 2:
        yield from map(function, jobs)
        return
    with crew(function, workers) as connections:
        yield from collect(jobs, connections)


def collect(jobs: Sequence[Any], connections: list[Connection]) -> Iterator[Any]:
    """Keep every worker busy until the jobs run out, and yield the results in order."""
    queue = iter(enumerate(jobs))
    running: dict[Connection, int] = {}
    done: dict[int, Any] = {}

    def give(connection: Connection) -> None:
        for number, job in queue:
            connection.send(job)
            running[connection] = number
            return

    try:
        for connection in connections:
            give(connection)
        for number in range(len(jobs)):
            while number not in done:
                for connection in cast(list[Connection], wait(list(running))):
                    result, error = connection.recv()
                    if error is not None:
                        raise error
                    done[running.pop(connection)] = result
                    give(connection)
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
    """What a worker does: jobs come in, (result, None) or (None, error) goes out."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    reply: tuple[Any, Exception | None]
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job = connection.recv()
            try:
                reply = (function(job), None)
            except Exception as error:
                reply = (None, error)
            connection.send(reply)


def end_with_parent() -> None:
    """Wait for the parent to end, then end this process, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
