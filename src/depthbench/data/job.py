"""The unit of parallel work and of resuming: a job (a group of files, and what to do with them) and the record of its part."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from depthbench.data.manifest import Skipped
from depthbench.data.sources import SourceFile, identity
from depthbench.data.tokenizer import Tokenizer, kept_tokenizer
from depthbench.files import content_hash

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
    held_out: Path | None = None  # the file of the documents that may not be among those of this job

    @property
    def bytes(self) -> int:
        """Size of the files on disk: the unit of progress."""
        return sum(file.bytes for file in self.files)

    @property
    def key(self) -> str:
        """Hash of all that decides the part."""
        about = [1, self.number, self.tokenizer_hash, self.validation_fraction, identity(self.files)]
        return content_hash(about + ([self.held_out.name] if self.held_out else []))[:32]

    def path(self, ending: str) -> Path:
        """A file of this part."""
        return self.folder / f"{self.key}.{ending}"


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
    null_documents: int = 0
    duplicates: int = 0  # held out, and not written; `example` is the first
    example: str = ""
    train: Counts = field(default_factory=Counts)
    validation: Counts = field(default_factory=Counts)

    @property
    def so_far(self) -> tuple[int, int]:
        """Documents and tokens."""
        return self.train.documents + self.validation.documents, self.train.tokens + self.validation.tokens


@dataclass(frozen=True)
class Far:
    """How far a part is: bytes of its files, documents, tokens."""

    bytes: int = 0
    documents: int = 0
    tokens: int = 0


def split_of(digest: bytes, fraction: float) -> str:
    """Which of `SPLITS` a document with this sha256 falls into: all into train at 0, all into validation at 1."""
    return "validation" if int.from_bytes(digest[:8], "big") < fraction * 2**64 else "train"
