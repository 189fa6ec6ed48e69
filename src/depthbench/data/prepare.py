"""From sources to token files: `tokenizer.json`, `train.bin`, `validation.bin`, `token_bytes.npy` and, last, `manifest.json`.

Groups of files are tokenized to parts, which are kept until the end, then joined in order. A kill at any moment loses at most the
groups in work, and the same call again gives the same bytes whatever the number of workers.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from depthbench.data.job import Job, Part
from depthbench.data.join import TOKEN_FILES, check_early, join
from depthbench.data.manifest import MANIFEST, Manifest, check_sizes, load_manifest, write_manifest
from depthbench.data.parts import group, load_part, make_part
from depthbench.data.sources import Source, SourceFile, expand, hash_file, identity
from depthbench.data.tokenizer import TOKENIZER, Tokenizer, Untrained, find_tokenizer
from depthbench.data.workers import in_order
from depthbench.errors import UserError
from depthbench.files import content_hash, make_folder, write_bytes
from depthbench.progress import Progress

PARTS = "parts"
LOCK = ".lock"  # also the mark of a folder that is ours, so that nobody else's files are overwritten
# up to here one process is done before a second would have paid off (measured, 2 cores): bytes run at 150 MB/s, a BPE at 2 MB/s
ONE_PROCESS_BYTES, ONE_PROCESS_BPE_BYTES = 64 * 2**20, 2**20


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    sources: list[Source]
    out: Path
    tokenizer: Tokenizer | Untrained
    validation_fraction: float

    @property
    def files(self) -> list[SourceFile]:
        """The files of all sources, in order."""
        return [file for source in self.sources for file in source.files]

    def jobs(self, tokenizer: Tokenizer) -> list[Job]:
        """The groups of all sources, in the order of their tokens."""
        groups = [files for source in self.sources for files in group(source.files)]
        return [
            Job(files, self.out / PARTS, tokenizer.name, tokenizer.hash, tokenizer.eos, self.validation_fraction, number)
            for number, files in enumerate(groups)
        ]


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    tokenizer: str = "bytes",
    eos: str = "",
    validation_fraction: float = 0.05,
    workers: int | None = None,
    quiet: bool = False,
) -> Manifest:
    """Tokenize `sources` into the folder `out` and return its manifest. For `tokenizer` and `eos` see `find_tokenizer`.

    A document goes to validation if the sha256 of its UTF-8 text, read as a fraction of 1, is below `validation_fraction`. The call
    continues what an earlier one left unfinished, and returns at once if the folder already holds the same sources
    (compared by content), tokenizer and fraction. `workers` is the number of processes, by default one for a small corpus and one
    a core for others; it does not change the result. Raises `UserError` for bad input, before the work if a side of the split would
    be empty, and if the folder already holds anything else; what it holds then stays as it is.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(f"validation fraction must lie between 0 and 1, got {validation_fraction:g}")
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    plan = Plan(expand(sources, leave_out=out), out, find_tokenizer(tokenizer, eos), validation_fraction)
    try:
        done = finished(plan)
        if done and not (out / PARTS).exists():
            return done
        if foreign := [name for name in (PARTS, *TOKEN_FILES) if (out / name).exists() and not (out / LOCK).exists()]:
            raise UserError(f"{out} holds {', '.join(foreign)} of other origin; choose another --out")
        if not done:
            check_early(plan.files, validation_fraction)
        make_folder(out)
        with locked(out, quiet):
            manifest = finished(plan) or work(plan, workers, quiet)
            shutil.rmtree(out / PARTS, ignore_errors=True)  # after the manifest, also if an earlier call was killed right there
            return manifest
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}; mend that and repeat to continue") from error


def finished(plan: Plan) -> Manifest | None:
    """The manifest if the folder is finished as asked for, None if it is not finished; `UserError` if it holds other tokens."""
    if not (plan.out / MANIFEST).exists():
        return None
    found = load_manifest(plan.out)
    if difference := differs(found, plan):
        raise UserError(f"{plan.out} already holds other tokens: {difference}; choose another --out")
    check_sizes(plan.out, found)
    return found


def differs(found: Manifest, plan: Plan) -> str | None:
    """How the finished folder differs from the plan, or None. Compares the content of source files, not their times."""
    asked = plan.tokenizer  # one that is trained on the same sources is the same
    if found.tokenizer != asked.name if isinstance(asked, Untrained) else found.tokenizer_hash != asked.hash:
        same = " (another file or EOS)" if found.tokenizer == asked.name else ""
        return f"tokenizer {found.tokenizer!r} there, {asked.name!r} asked for{same}"
    if found.validation_fraction != plan.validation_fraction:
        return f"validation fraction {found.validation_fraction:g} there, {plan.validation_fraction:g} asked for"
    there, wanted = ([source.name for source in sources] for sources in (found.sources, plan.sources))
    if there != wanted:
        return f"sources {', '.join(there)} there, {', '.join(wanted)} asked for"
    for record, source in zip(found.sources, plan.sources, strict=True):
        names = {file.name for file in source.files}
        if odd := sorted(record.files.keys() ^ names):
            return f"{source.name}/{odd[0]} is {'new' if odd[0] in names else 'gone'} since then"
        for file in source.files:
            if hash_file(file.path) != record.files[file.name]:
                return f"{file.label} has changed since then"
    return None


@contextmanager
def locked(out: Path, quiet: bool) -> Iterator[None]:
    """Hold the folder for this process, after waiting for any other that holds it. A killed process holds nothing."""
    with open(out / LOCK, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not quiet:
                print(f"waiting for another process that prepares {out}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def work(plan: Plan, workers: int | None, quiet: bool) -> Manifest:
    """Settle the tokenizer, make the missing parts, join all of them, and write the manifest."""
    (plan.out / PARTS).mkdir(exist_ok=True)
    for name in (*TOKEN_FILES, MANIFEST):
        for stray in plan.out.glob(f".{name}.*.part"):  # of a killed process: the lock is ours, so nobody writes it
            stray.unlink()
    tokenizer = trained(plan, plan.tokenizer, quiet) if isinstance(plan.tokenizer, Untrained) else plan.tokenizer
    if tokenizer.file is None:
        (plan.out / TOKENIZER).unlink(missing_ok=True)  # of an earlier call that asked for another
    else:
        write_bytes(plan.out / TOKENIZER, tokenizer.file)
    jobs = plan.jobs(tokenizer)
    parts = make_parts(jobs, workers, ONE_PROCESS_BYTES if tokenizer.file is None else ONE_PROCESS_BPE_BYTES, quiet)
    manifest = join(plan.out, plan.sources, tokenizer, plan.validation_fraction, jobs, parts)
    write_manifest(manifest, plan.out)
    return manifest


def trained(plan: Plan, asked: Untrained, quiet: bool) -> Tokenizer:
    """The tokenizer trained on the plan's training documents, by an earlier call if it was interrupted only after that."""
    from depthbench.data.bpe import read_tokenizer
    from depthbench.data.learn import LEARNED_EOS, learn

    key = content_hash([1, asked.entries, plan.validation_fraction, identity(plan.files)])[:32]
    path = plan.out / PARTS / f"{key}.{TOKENIZER}"
    try:
        return read_tokenizer(path, asked.name, LEARNED_EOS)
    except UserError:  # not there, or damaged
        write_bytes(path, learn(plan.files, asked.entries, plan.validation_fraction, quiet))
        return read_tokenizer(path, asked.name, LEARNED_EOS)


def make_parts(jobs: list[Job], workers: int | None, one_process_bytes: int, quiet: bool) -> list[Part]:
    """The parts of all jobs, in order; those that an earlier call finished are taken as they are."""
    parts = {job.number: part for job in jobs if (part := load_part(job)) is not None}
    missing = [job for job in jobs if job.number not in parts]
    total, left = sum(job.bytes for job in jobs), sum(job.bytes for job in missing)
    if workers is None:
        workers = 1 if left < one_process_bytes else (os.cpu_count() or 1)
    began, done = time.monotonic(), total - left
    with Progress("preparing", total, start=done) as progress, closing(in_order(make_part, missing, workers)) as results:
        for job, part in zip(missing, results, strict=True):
            parts[job.number] = part
            done += job.bytes
            rate = (done - progress.start) / 1e6 / max(time.monotonic() - began, 1e-9)
            if not quiet:
                progress.update(done, f"{rate:.1f} MB/s")
    return [parts[job.number] for job in jobs]
