"""Tokenizing a group of files into part files: the unit of parallel work and of resuming.

A part is two token files and a record written last. Its name is the hash of everything that decides its content, so a part
that is there is right, and a part of other inputs is never mistaken for it. Nothing here imports torch: each worker process
starts with this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from depthbench.data.documents import NotTextError, open_hashed, read_documents
from depthbench.data.manifest import DTYPES, Skipped, dtype_for
from depthbench.data.sources import SourceFile
from depthbench.data.tokenizer import InexactError, Tokenizer, kept_tokenizer
from depthbench.errors import UserError
from depthbench.files import content_hash, read_json, write_json, write_with

GROUP_BYTES = 8 * 2**20
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Job:
    """Consecutive files of one source, what to do with them, and the folder for the part.

    The tokenizer is what `kept_tokenizer` finds above that folder by its name and EOS.
    """

    files: tuple[SourceFile, ...]
    folder: Path
    tokenizer: str
    tokenizer_hash: str
    eos: int
    validation_fraction: float
    number: int

    @property
    def bytes(self) -> int:
        """Size of the files on disk: the unit of progress."""
        return sum(file.bytes for file in self.files)

    @property
    def key(self) -> str:
        """Hash of all that decides the part."""
        return content_hash([1, self.number, self.tokenizer_hash, self.validation_fraction, identity(self.files)])[:32]

    def path(self, ending: str) -> Path:
        """A file of this part."""
        return self.folder / f"{self.key}.{ending}"


def identity(files: Sequence[SourceFile]) -> list[list[Any]]:
    """What tells files from others and from what they were: one that was changed since has another size or time."""
    return [[str(file.path), file.label, file.named, file.bytes, file.modified_ns] for file in files]


@lru_cache(maxsize=1)
def tokenizer_above(folder: Path, name: str, eos: int, hash: str) -> Tokenizer:
    """The tokenizer that a job names, read once; `hash` says whether it is still the same one."""
    return kept_tokenizer(folder.parent, name, eos)


def tokenizer_of(job: Job) -> Tokenizer:
    """The tokenizer of a job."""
    return tokenizer_above(job.folder, job.tokenizer, job.eos, job.tokenizer_hash)


@dataclass
class Counts:
    """What one side of the split received."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0


@dataclass
class Part:
    """The record of a part: sha256 of each file in order, and what was found in them."""

    hashes: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    empty_documents: int = 0
    train: Counts = field(default_factory=Counts)
    validation: Counts = field(default_factory=Counts)


def group(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Consecutive files in groups of about `GROUP_BYTES`: small enough to lose little, large enough to cost little."""
    gathered: list[SourceFile] = []
    size = 0
    for file in files:
        gathered.append(file)
        size += file.bytes + 4096  # an empty file costs time too
        if size >= GROUP_BYTES:
            yield tuple(gathered)
            gathered, size = [], 0
    if gathered:
        yield tuple(gathered)


def is_validation(text: bytes, fraction: float) -> bool:
    """The side of a document, from its own hash: duplicates share it, and neither order nor machine changes it."""
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") < fraction * 2**64


def split_of(text: bytes, fraction: float) -> str:
    """Which of `SPLITS` a document falls into."""
    return "validation" if is_validation(text, fraction) else "train"


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
    tokenizer = tokenizer_of(job)
    number = 0
    for file in job.files:
        try:
            with open_hashed(file.path) as raw:
                for number, text in enumerate(read_documents(raw, file.path), 1):  # noqa: B007 (errors say which)
                    add(text, tokenizer, job.validation_fraction, part, out)
        except InexactError as reason:
            raise UserError(f"{file.path}, document {number}: {reason}") from reason
        except NotTextError as reason:
            if file.named:
                raise no_text(file, reason) from reason
            part.skipped.append(Skipped(file.label, str(reason)))
        part.hashes.append(raw.hash.hexdigest())


def no_text(file: SourceFile, reason: NotTextError) -> UserError:
    """The error for a file that the user named and that is no text."""
    return UserError(f"{file.path} is no text ({reason}); give UTF-8 text, or leave it out")


def contents(file: SourceFile) -> Iterator[bytes]:
    """The documents of a file as UTF-8 without the empty ones; none if it is no text. Raises `UserError` as tokenizing it would."""
    try:
        with open_hashed(file.path) as raw:
            for text in read_documents(raw, file.path):
                if text:
                    yield text.encode()
    except NotTextError as reason:
        if file.named:
            raise no_text(file, reason) from reason


def add(text: str, tokenizer: Tokenizer, fraction: float, part: Part, out: dict[str, BinaryIO]) -> None:
    """Write one document and EOS to its side."""
    content = text.encode()
    if not content:
        part.empty_documents += 1
        return
    split = split_of(content, fraction)
    dtype = DTYPES[dtype_for(tokenizer.vocab_size)]
    tokens = tokenizer.encode(text).astype(dtype, copy=False)
    out[split].write(tokens.tobytes())
    out[split].write(tokenizer.eos.to_bytes(tokens.itemsize, "little"))
    counts: Counts = getattr(part, split)
    counts.documents += 1
    counts.tokens += len(tokens) + 1
    counts.bytes += tokenizer.bytes_of(tokens)
