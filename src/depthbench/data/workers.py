"""Work spread over processes, results in order. Torch is not imported, so a worker starts in about the time numpy needs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from depthbench.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Generator[Result, None, None]:
    """`function` of each job, in the order of the jobs, by up to `workers` processes (in this one if one is enough)."""
    workers = min(workers, len(jobs))
    if workers < 2:
        yield from map(function, jobs)
        return
    # spawn, not fork: safe whatever threads the caller runs, and the same on Linux and macOS
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker) as pool:
            yield from pool.map(function, jobs)
    except BrokenProcessPool as error:
        raise UserError("a worker process died (out of memory?); repeat to continue, perhaps with fewer workers") from error


def start_worker() -> None:
    """Ctrl-C ends a worker without a traceback, and no worker outlives a killed parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait for the parent to end, then end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
