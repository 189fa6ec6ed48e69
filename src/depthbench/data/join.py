"""Joining finished parts, in order, to the token files and their manifest; and whether both sides of the split get documents."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from depthbench.data.documents import PARQUET, ending
from depthbench.data.held_out import check_duplicates
from depthbench.data.job import SPLITS, Counts, Job, Part, split_of
from depthbench.data.long_text import digest_of
from depthbench.data.manifest import DTYPES, FORMAT, TOKEN_BYTES, Manifest, SourceRecord, Split, created_by, dtype_for
from depthbench.data.parquet import check_file
from depthbench.data.plan import Plan, files_of
from depthbench.data.reading import contents, is_remote
from depthbench.data.shards import write_shards
from depthbench.data.sources import Source, SourceFile, hash_file
from depthbench.data.tokenizer import TOKENIZER, Tokenizer
from depthbench.errors import UserError
from depthbench.files import write_with

TOKEN_FILES = (TOKENIZER, *(f"{split}.bin" for split in SPLITS), TOKEN_BYTES)


def join(plan: Plan, tokenizer: Tokenizer, jobs: list[Job], parts: list[Part]) -> Manifest:
    """Write the token files and return their manifest. Raises `UserError` if a side is empty, or duplicates are refused."""
    out = plan.out
    counts = {split: total([getattr(part, split) for part in parts]) for split in SPLITS}
    duplicates = sum(part.duplicates for part in parts)
    example = next((part.example for part in parts if part.duplicates), "")
    check_duplicates(duplicates, example, plan.duplicates, counts["train"].documents)
    if not plan.validation:
        check_sides(counts, plan.validation_fraction)
    token_bytes = tokenizer.token_bytes()
    write_with(out / TOKEN_BYTES, lambda file: np.save(file, token_bytes))
    hashes = chain.from_iterable(part.hashes for part in parts)  # in the order of all files
    dtype = dtype_for(tokenizer.vocab_size)
    train, validation = (
        join_split(out, split, counts[split], jobs, int(DTYPES[dtype][-1]), bound)
        for split, bound in zip(SPLITS, (plan.shard_tokens, counts["validation"].tokens), strict=True)
    )
    return Manifest(
        format=FORMAT,
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        dtype=dtype,
        token_bytes_sha256=hash_file(out / TOKEN_BYTES),
        validation_fraction=plan.training_fraction,
        train=train,
        validation=validation,
        sources=tuple(record(source, hashes) for source in plan.sources),
        skipped=tuple(file for part in parts for file in part.skipped),
        empty_documents=sum(part.empty_documents for part in parts),
        ignored=dict(sorted(sum((source.ignored for source in plan.sources + plan.validation), Counter()).items())),
        created_by=created_by(),
        python=platform.python_version(),
        text_column=plan.text_column,
        null_documents=sum(part.null_documents for part in parts),
        validation_sources=tuple(record(source, hashes) for source in plan.validation),
        duplicates_dropped=duplicates,
    )


def total(counts: list[Counts]) -> Counts:
    """The sum over parts."""
    return Counts(*(sum(getattr(part, name) for part in counts) for name in ("documents", "tokens", "bytes")))


def check_early(plan: Plan) -> None:
    """Raise `UserError` if a side will be empty, if a parquet file has no such column, or if a file met on the way is damaged.

    About 1 / fraction documents are read, or one of each side. Only a corpus that is refused is read whole.
    """
    for file in plan.files + files_of(plan.validation):
        if ending(file.path.name) == PARQUET and not is_remote(file):
            check_file(file.path, file.column)
    if plan.validation:
        check_documents(plan.files, "training sources")
        check_documents(files_of(plan.validation), "validation sources")
        return
    counts = {split: Counts() for split in SPLITS}
    for file in plan.files:
        for content in contents(file):
            counts[split_of(digest_of(content), plan.validation_fraction)].documents += 1
            if all(side.documents for side in counts.values()):
                return
    check_sides(counts, plan.validation_fraction)


def check_documents(files: list[SourceFile], what: str) -> None:
    """Raise `UserError` if there is no document in `files`."""
    if not any(True for file in files for _ in contents(file)):
        raise UserError(f"the {what} hold no documents: every file is empty, no text, or kept for the other side")


def check_sides(counts: dict[str, Counts], fraction: float) -> None:
    """Raise `UserError` if there are no documents, or none on one side of the split."""
    documents = sum(side.documents for side in counts.values())
    if not documents:
        raise UserError("the sources hold no documents: every file is empty or no text")
    more = "give more documents (a plain file is one, a line of .jsonl is one)"
    if documents == 1:
        raise UserError(f"the sources hold a single document, which cannot be split into training and validation; {more}")
    for split, side in counts.items():
        if not side.documents:
            raise UserError(
                f"corpus too small: none of {documents} documents falls into {split} at validation fraction {fraction:g}; "
                f"{more} or another fraction"
            )


def join_split(out: Path, split: str, counts: Counts, jobs: list[Job], width: int, shard_tokens: int) -> Split:
    """Write one side's token files and describe it."""
    sha256, shards = write_shards(out, split, [job.path(split) for job in jobs], counts.tokens, width, shard_tokens)
    return Split(counts.documents, counts.tokens, counts.bytes, sha256, tuple(shards))


def record(source: Source, hashes: Iterator[str]) -> SourceRecord:
    """The record of one source; takes the hashes of its files from `hashes`."""
    files = {file.name: next(hashes) for file in source.files}
    return SourceRecord(source.name, sum(file.bytes for file in source.files), files)
