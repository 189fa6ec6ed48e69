"""From sources to token files: `tokenizer.json`, `train.bin`, `validation.bin`, `token_bytes.npy` and, last, `manifest.json`.

Groups of files are tokenized to parts, which are kept until the end, then joined in order. A kill at any moment loses at most the
groups in work, and the same call again gives the same bytes whatever the number of workers.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from depthbench.data.crew import make_parts
from depthbench.data.documents import TEXT_COLUMN
from depthbench.data.held_out import find_held_out
from depthbench.data.join import TOKEN_FILES, check_early, join
from depthbench.data.manifest import MANIFEST, Manifest, check_sizes, write_manifest
from depthbench.data.plan import PARTS, Plan, check_request, files_of, finished
from depthbench.data.shards import SHARD_TOKENS, shard_files
from depthbench.data.sources import expand, identity, without_files
from depthbench.data.tokenizer import TOKENIZER, Tokenizer, Untrained, find_tokenizer
from depthbench.errors import UserError
from depthbench.files import content_hash, make_folder, write_bytes

LOCK = ".lock"  # also the mark of a folder that is ours, so that nobody else's files are overwritten
# up to here one process is done before a second would have paid off (measured, 2 cores): bytes run at 150 MB/s, a BPE at 2 MB/s
ONE_PROCESS_BYTES, ONE_PROCESS_BPE_BYTES = 64 * 2**20, 2**20


def prepare(
    sources: Sequence[str],
    out: Path,
    *,
    tokenizer: str = "bytes",
    eos: str = "",
    validation_fraction: float = 0.05,
    validation: Sequence[str] = (),
    duplicates: str = "refuse",
    text_column: str = TEXT_COLUMN,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
    quiet: bool = False,
) -> Manifest:
    """Tokenize `sources` into the folder `out` and return its manifest. For `tokenizer` and `eos` see `find_tokenizer`.

    A document goes to validation if the sha256 of its UTF-8 text, read as a fraction of 1, is below `validation_fraction`; or, with
    sources named in `validation`, if it is in one of those. Then `duplicates` says what becomes of training documents that are
    validation documents too: "refuse" or "drop". `text_column` is the key of the text where a file has rows. Training tokens are
    written in files of at most `shard_tokens`, which changes neither batches nor fingerprint.

    The call continues what an earlier one left unfinished, and returns at once if the folder already holds the same sources
    (compared by content), tokenizer and split. `workers` is the number of processes, by default one for a small corpus and one
    a core for others; it does not change the result. Raises `UserError` for bad input, before the work if a side of the split would
    be empty, and if the folder already holds anything else; what it holds then stays as it is.
    """
    check_request(validation_fraction, duplicates, shard_tokens, workers)
    found = expand(sources, out, text_column)
    kept = expand(validation, out, text_column) if validation else []
    found = without_files(found, files_of(kept)) if kept else found
    asked = find_tokenizer(tokenizer, eos)
    plan = Plan(found, out, asked, validation_fraction, kept, duplicates, text_column, shard_tokens)
    try:
        done = finished(plan)
        if done and not (out / PARTS).exists():
            return done
        there = [*((out / name) for name in (PARTS, *TOKEN_FILES)), *shard_files(out, "train")]
        if (foreign := dict.fromkeys(path.name for path in there if path.exists())) and not (out / LOCK).exists():
            raise UserError(f"{out} holds {', '.join(foreign)} of other origin; choose another --out")
        if not done:
            check_early(plan)
        make_folder(out)
        with locked(out, quiet):
            manifest = finished(plan) or work(plan, workers, quiet)
            shutil.rmtree(out / PARTS, ignore_errors=True)  # after the manifest, also if an earlier call was killed right there
            return manifest
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}; mend that and repeat to continue") from error


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
    for name in (*TOKEN_FILES, MANIFEST, "train-*.bin"):
        for stray in plan.out.glob(f".{name}.*.part"):  # of a killed process: the lock is ours, so nobody writes it
            stray.unlink()
    held_out = find_held_out(files_of(plan.validation), plan.out / PARTS) if plan.validation else None
    tokenizer = trained(plan, plan.tokenizer, held_out, quiet) if isinstance(plan.tokenizer, Untrained) else plan.tokenizer
    if tokenizer.file is None:
        (plan.out / TOKENIZER).unlink(missing_ok=True)  # of an earlier call that asked for another
    else:
        write_bytes(plan.out / TOKENIZER, tokenizer.file)
    jobs = plan.jobs(tokenizer, held_out)
    parts = make_parts(jobs, workers, ONE_PROCESS_BYTES if tokenizer.file is None else ONE_PROCESS_BPE_BYTES, quiet)
    manifest = join(plan, tokenizer, jobs, parts)
    check_sizes(plan.out, manifest, "repeat to continue")
    write_manifest(manifest, plan.out)
    return manifest


def trained(plan: Plan, asked: Untrained, held_out: Path | None, quiet: bool) -> Tokenizer:
    """The tokenizer trained on the plan's training documents, by an earlier call if it was interrupted only after that."""
    from depthbench.data.bpe import read_tokenizer
    from depthbench.data.learn import LEARNED_EOS, learn

    about = [1, asked.entries, plan.training_fraction, identity(plan.files)]
    key = content_hash(about + ([held_out.name] if held_out else []))[:32]
    path = plan.out / PARTS / f"{key}.{TOKENIZER}"
    try:
        return read_tokenizer(path, asked.name, LEARNED_EOS)
    except UserError:  # not there, or damaged
        write_bytes(path, learn(plan.files, asked.entries, plan.training_fraction, quiet, held_out))
        return read_tokenizer(path, asked.name, LEARNED_EOS)
