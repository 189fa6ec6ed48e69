"""Tokenizing a group of files into part files: the unit of parallel work and of resuming.

A part is two token files and a record written last. Its name is the hash of everything that decides its content, so a part
that is there is right, and a part of other inputs is never mistaken for it. Nothing here imports torch: each worker process
starts with this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import BinaryIO

from depthbench.data.documents import PARQUET
from depthbench.data.job import SPLITS, Counts, Job, Part, split_of, tokenizer_of
from depthbench.data.long_text import NotTextError
from depthbench.data.manifest import DTYPES, Skipped, dtype_for
from depthbench.data.reading import no_text, opened, read
from depthbench.data.sources import SourceFile
from depthbench.data.unpack import PACKED
from depthbench.data.writer import Writer
from depthbench.errors import UserError
from depthbench.files import read_json, write_json, write_with

GROUP_BYTES = 8 * 2**20
DENSE = 4  # bytes of text in a byte of a packed file


def group(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Consecutive files in groups of about `GROUP_BYTES` of text: small enough to lose little, large enough to cost little."""
    gathered: list[SourceFile] = []
    size = 0
    for file in files:
        gathered.append(file)
        size += (
            file.bytes * (DENSE if file.path.name.lower().endswith((*PACKED, PARQUET)) else 1) + 4096
        )  # an empty one costs time too
        if size >= GROUP_BYTES:
            yield tuple(gathered)
            gathered, size = [], 0
    if gathered:
        yield tuple(gathered)


def is_validation(text: bytes, fraction: float) -> bool:
    """The side of a document, from its own hash: duplicates share it, and neither order nor machine changes it."""
    return split_of(hashlib.sha256(text).digest(), fraction) == "validation"


def load_part(job: Job) -> Part | None:
    """The finished part of `job`, or None if it has to be made."""
    try:
        record = read_json(job.path("json"))
        skipped = [Skipped(**file) for file in record["skipped"]]
        part = Part(**record | {"skipped": skipped} | {split: Counts(**record[split]) for split in SPLITS})
        width = int(DTYPES[dtype_for(tokenizer_of(job).vocab_size)][-1])
        whole = all(job.path(split).stat().st_size == getattr(part, split).tokens * width for split in SPLITS)
    except (UserError, OSError, TypeError, KeyError):
        return None
    return part if whole else None


def make_part(job: Job) -> Part:
    """Tokenize the files of `job` to its part files and return the record. Raises `UserError` for damaged input."""
    part = Part()

    def with_train(train: BinaryIO) -> None:
        write_with(job.path("validation"), lambda validation: tokenize(job, part, {"train": train, "validation": validation}))

    write_with(job.path("train"), with_train)
    write_json(job.path("json"), asdict(part))
    return part


def tokenize(job: Job, part: Part, out: dict[str, BinaryIO]) -> None:
    """Write every document of the group, followed by EOS, to its side, and count it in `part`."""
    writer = Writer(job, part, out)
    before = 0
    for file in job.files:
        try:
            with opened(file) as raw:
                for number, document in enumerate(read(raw, file), 1):
                    writer.add(document, file, number)
                    writer.tell(before + min(raw.done, file.bytes or raw.done))
        except NotTextError as reason:
            if file.named:
                raise no_text(file, reason) from reason
            part.skipped.append(Skipped(file.label, str(reason)))
        part.hashes.append(raw.hash.hexdigest())
        before += file.bytes
    writer.flush()
