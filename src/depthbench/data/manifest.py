"""The manifest of a folder of token files: what it holds, where it came from, and the hashes that pin it."""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import content_hash, read_json, write_json

FORMAT = 1
MANIFEST = "manifest.json"
TOKEN_BYTES = "token_bytes.npy"
DTYPES = {"uint16": "<u2", "uint32": "<u4"}  # little endian on every machine


def dtype_for(vocab_size: int) -> str:
    """The smallest stored type that holds every id of the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


@dataclass(frozen=True)
class Shard:
    """One token file and the sha256 of its bytes."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """One side of the split. `bytes` are UTF-8 bytes of text (EOS counts 0); `sha256` is over all its tokens in order.

    Validation has one shard; training may have several, which together are one stream of tokens.
    """

    documents: int
    tokens: int
    bytes: int
    sha256: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class SourceRecord:
    """One source as it was read: the sha256 of every file by its name inside the source."""

    name: str
    bytes: int
    files: dict[str, str]

    @property
    def sha256(self) -> str:
        """One hash for the names and contents of all files."""
        return content_hash(self.files)


@dataclass(frozen=True)
class Skipped:
    """A file that was read and is no text."""

    file: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """What a folder of tokens is. See `load_manifest`."""

    format: int
    tokenizer: str
    tokenizer_hash: str
    vocab_size: int
    eos: int
    dtype: str
    token_bytes_sha256: str
    validation_fraction: float
    train: Split
    validation: Split
    sources: tuple[SourceRecord, ...]
    skipped: tuple[Skipped, ...]
    empty_documents: int
    ignored: dict[str, int]  # how many files were passed over, by ending
    created_by: str
    python: str
    text_column: str = "text"
    null_documents: int = 0  # rows that hold no text
    validation_sources: tuple[SourceRecord, ...] = ()  # kept for validation whole; then the fraction is 0
    duplicates_dropped: int = 0  # training documents that are validation documents too

    @property
    def fingerprint(self) -> str:
        """sha256 of the tokens and the tokenizer alone: equal wherever, whenever and from whatever paths they were prepared."""
        return content_hash([self.tokenizer_hash, self.train.sha256, self.validation.sha256])

    @property
    def validation_sha256(self) -> str:
        """sha256 of the validation tokens: losses are comparable only where it is equal."""
        return self.validation.sha256


def write_manifest(manifest: Manifest, dir: Path) -> None:
    """Atomically write the manifest, with its fingerprint, to the folder. What has its default is left out."""
    usual = {field.name for field in fields(manifest) if getattr(manifest, field.name) == field.default}
    content = {name: value for name, value in asdict(manifest).items() if name not in usual}
    write_json(dir / MANIFEST, {"fingerprint": manifest.fingerprint, **content})


def load_manifest(dir: Path) -> Manifest:
    """Read the manifest of a folder of token files.

    Raises `UserError` if there is none, if it was written by a newer depthbench, or if it is damaged.
    """
    path = dir / MANIFEST
    if not path.exists():
        raise UserError(f"no token files in {dir} (no {MANIFEST}); make them with: depthbench data prepare … --out {dir}")
    content = read_json(path)
    try:
        version = content["format"]
        if version > FORMAT:
            raise UserError(f"{path} has format {version}, newer than {FORMAT}, the newest this version reads; update depthbench")
        fingerprint = content.pop("fingerprint")
        content.setdefault("validation_sources", ())
        manifest = Manifest(**content | {name: read(content[name]) for name, read in NESTED.items()})
        check_consistent(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no manifest of token files ({type(error).__name__}: {error}); {mend(dir)}") from error
    if fingerprint != manifest.fingerprint:
        raise UserError(f"{path} does not match its own fingerprint, so it was changed or damaged; {mend(dir)}")
    return manifest


def read_split(content: dict[str, Any]) -> Split:
    """A `Split` from JSON."""
    return Split(**content | {"shards": tuple(Shard(**shard) for shard in content["shards"])})


def read_sources(content: list[dict[str, Any]]) -> tuple[SourceRecord, ...]:
    """Source records from JSON."""
    return tuple(SourceRecord(**source) for source in content)


NESTED: dict[str, Any] = {
    "train": read_split,
    "validation": read_split,
    "sources": read_sources,
    "validation_sources": read_sources,
    "skipped": lambda content: tuple(Skipped(**file) for file in content),
}


def check_consistent(manifest: Manifest) -> None:
    """Raise `ValueError` if the numbers contradict each other."""
    for field in fields(manifest):
        if field.type == "int" and type(getattr(manifest, field.name)) is not int:
            raise ValueError(f"{field.name} is no whole number")
    if manifest.dtype not in DTYPES or manifest.vocab_size > 2 ** (8 * item_bytes(manifest)):
        raise ValueError(f"dtype {manifest.dtype!r} does not hold a vocabulary of {manifest.vocab_size}")
    if not 0 <= manifest.eos < manifest.vocab_size:
        raise ValueError(f"EOS {manifest.eos} is not below the vocabulary size {manifest.vocab_size}")
    for split in (manifest.train, manifest.validation):
        counts = [shard.tokens for shard in split.shards]
        if split.tokens < 1 or min(counts, default=0) < 1 or split.tokens != sum(counts):
            raise ValueError("the token counts of split and shards differ")
        if odd := [shard.file for shard in split.shards if Path(shard.file).name != shard.file]:
            raise ValueError(f"the shard {odd[0]!r} lies outside the folder")
    if len(manifest.validation.shards) != 1:
        raise ValueError("the validation tokens are not in one file")


def item_bytes(manifest: Manifest) -> int:
    """Bytes of one stored token."""
    return int(DTYPES[manifest.dtype][-1])


def check_sizes(dir: Path, manifest: Manifest, hint: str = "") -> None:
    """Raise `UserError`, with a hint what to do, unless every token file is there and as long as the manifest says."""
    hint = hint or mend(dir)
    for split in (manifest.train, manifest.validation):
        for shard in split.shards:
            path = dir / shard.file
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}; {hint}") from error
            if size != shard.tokens * item_bytes(manifest):
                due = shard.tokens * item_bytes(manifest)
                raise UserError(f"{path} has {size} bytes, its manifest says {due}; {hint}")


def mend(dir: Path) -> str:
    """What to do about a damaged folder."""
    return f"restore {dir} from a copy, or delete it and prepare it again"


def created_by() -> str:
    """Name and version of this package."""
    try:
        return f"depthbench {importlib.metadata.version('depthbench')}"
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "depthbench"
