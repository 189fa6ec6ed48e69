"""Joining finished parts, in order, to the token files and their manifest; and whether both sides of the split get documents."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from depthbench.data.job import SPLITS, Counts, Job, Part, split_of
from depthbench.data.long_text import digest_of
from depthbench.data.manifest import FORMAT, TOKEN_BYTES, Manifest, Shard, SourceRecord, Split, created_by, dtype_for
from depthbench.data.reading import contents
from depthbench.data.sources import Source, SourceFile, hash_file
from depthbench.data.tokenizer import TOKENIZER, Tokenizer
from depthbench.errors import UserError
from depthbench.files import write_with

TOKEN_FILES = (TOKENIZER, *(f"{split}.bin" for split in SPLITS), TOKEN_BYTES)


def join(out: Path, sources: list[Source], tokenizer: Tokenizer, fraction: float, jobs: list[Job], parts: list[Part]) -> Manifest:
    """Write the token files to `out` and return their manifest. Raises `UserError` if one side of the split is empty."""
    counts = {split: total([getattr(part, split) for part in parts]) for split in SPLITS}
    check_sides(counts, fraction)
    token_bytes = tokenizer.token_bytes()
    write_with(out / TOKEN_BYTES, lambda file: np.save(file, token_bytes))
    hashes = chain.from_iterable(part.hashes for part in parts)  # in the order of all files
    train, validation = (join_split(out, split, counts[split], jobs) for split in SPLITS)
    return Manifest(
        format=FORMAT,
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.hash,
        vocab_size=tokenizer.vocab_size,
        eos=tokenizer.eos,
        dtype=dtype_for(tokenizer.vocab_size),
        token_bytes_sha256=hash_file(out / TOKEN_BYTES),
        validation_fraction=fraction,
        train=train,
        validation=validation,
        sources=tuple(record(source, hashes) for source in sources),
        skipped=tuple(file for part in parts for file in part.skipped),
        empty_documents=sum(part.empty_documents for part in parts),
        ignored=dict(sorted(sum((source.ignored for source in sources), Counter()).items())),
        created_by=created_by(),
        python=platform.python_version(),
    )


def total(counts: list[Counts]) -> Counts:
    """The sum over parts."""
    return Counts(*(sum(getattr(part, name) for part in counts) for name in ("documents", "tokens", "bytes")))


def check_early(files: Sequence[SourceFile], fraction: float) -> None:
    """Raise `UserError` if one side of the split will be empty, or if a file that is met on the way is damaged.

    About 1 / `fraction` documents are read. Only a corpus that is refused is read whole.
    """
    counts = {split: Counts() for split in SPLITS}
    for file in files:
        for content in contents(file):
            counts[split_of(digest_of(content), fraction)].documents += 1
            if all(side.documents for side in counts.values()):
                return
    check_sides(counts, fraction)


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


def join_split(out: Path, split: str, counts: Counts, jobs: list[Job]) -> Split:
    """Write one side's token file and describe it."""
    path = out / f"{split}.bin"
    write_with(path, lambda file: concatenate([job.path(split) for job in jobs], file))
    sha256 = hash_file(path)
    return Split(counts.documents, counts.tokens, counts.bytes, sha256, (Shard(path.name, counts.tokens, sha256),))


def concatenate(paths: list[Path], out: BinaryIO) -> None:
    """Copy the files to `out`, one after the other."""
    for path in paths:
        with open(path, "rb") as file:
            shutil.copyfileobj(file, out, 2**20)


def record(source: Source, hashes: Iterator[str]) -> SourceRecord:
    """The record of one source; takes the hashes of its files from `hashes`."""
    files = {file.name: next(hashes) for file in source.files}
    return SourceRecord(source.name, sum(file.bytes for file in source.files), files)
