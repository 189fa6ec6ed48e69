"""Making all parts: how many processes with how many threads, and how far they are."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from depthbench.data.job import Far, Job, Part
from depthbench.data.parts import load_part, make_part
from depthbench.data.reading import is_remote
from depthbench.data.workers import in_order
from depthbench.progress import Progress


def make_parts(jobs: list[Job], workers: int | None, one_process_bytes: int, quiet: bool) -> list[Part]:
    """The parts of all jobs, in order; those that an earlier call finished are taken as they are.

    `workers` is the number of processes. Where there are fewer jobs, the tokenizer's threads make up for it.
    """
    parts = {job.number: part for job in jobs if (part := load_part(job)) is not None}
    missing = [job for job in jobs if job.number not in parts]
    left = sum(job.bytes for job in missing)
    unknown = any(is_remote(file) for job in missing for file in job.files)  # how large is a data set on the hub?
    if workers is None:
        workers = 1 if left < one_process_bytes and not unknown else (os.cpu_count() or 1)
    count = Count(jobs, parts, missing, unknown)
    threads = max(1, workers // max(1, min(workers, len(missing))))
    with Progress("preparing", count.total, start=count.start) as progress, tokenizer_threads(threads):

        def hear(number: int, far: Far) -> None:
            count.running[number] = far
            if not quiet:
                progress.update(count.bytes, count.note())

        with closing(in_order(make_part, missing, workers, hear)) as results:
            for number, part in enumerate(results):
                count.finish(number, part)
                parts[missing[number].number] = part
                if not quiet:
                    progress.total = count.bytes if number + 1 == len(missing) else count.total
                    progress.update(count.bytes, count.note())
    return [parts[job.number] for job in jobs]


class Count:
    """What has been read and written so far, by finished jobs and by those that run."""

    def __init__(self, jobs: list[Job], parts: dict[int, Part], missing: list[Job], unknown: bool):
        self.missing = missing
        self.done = [Far(job.bytes, *parts[job.number].so_far) for job in jobs if job.number in parts]
        self.total = math.inf if unknown else float(sum(job.bytes for job in jobs))
        self.start = sum(far.bytes for far in self.done)
        self.documents = sum(far.documents for far in self.done)
        self.tokens = sum(far.tokens for far in self.done)
        self.finished = self.start
        self.running: dict[int, Far] = {}
        self.began = time.monotonic()

    def finish(self, number: int, part: Part) -> None:
        """The job of this number among the missing is done."""
        self.running.pop(number, None)
        documents, tokens = part.so_far
        self.documents += documents
        self.tokens += tokens
        self.finished += self.missing[number].bytes or part.train.bytes + part.validation.bytes  # no file: the text itself

    @property
    def bytes(self) -> int:
        """Bytes of source files."""
        return self.finished + sum(far.bytes for far in self.running.values())

    def note(self) -> str:
        """In words: everything there is, and the rate of this call."""
        documents = self.documents + sum(far.documents for far in self.running.values())
        tokens = self.tokens + sum(far.tokens for far in self.running.values())
        rate = (self.bytes - self.start) / 1e6 / max(time.monotonic() - self.began, 1e-9)
        return f"{documents:,} documents  {tokens:,} tokens  {rate:.1f} MB/s"


@contextmanager
def tokenizer_threads(threads: int) -> Iterator[None]:
    """Tokenizers, also those of processes started inside, use so many threads, unless the user said otherwise."""
    wanted = {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
    own = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
