"""What `data prepare` was asked for, and whether a folder already holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from depthbench.data.held_out import POLICIES
from depthbench.data.job import Job
from depthbench.data.manifest import MANIFEST, Manifest, SourceRecord, check_sizes, load_manifest
from depthbench.data.parts import group
from depthbench.data.reading import is_remote
from depthbench.data.sources import Source, SourceFile, hash_file
from depthbench.data.tokenizer import Tokenizer, Untrained
from depthbench.errors import UserError, unknown

PARTS = "parts"
TRAIN_ALL, VALIDATE_ALL = 0.0, 1.0  # the fractions of jobs whose side is known


@dataclass(frozen=True)
class Plan:
    """What was asked for. `validation` are sources kept for validation; without any, `validation_fraction` splits `sources`."""

    sources: list[Source]
    out: Path
    tokenizer: Tokenizer | Untrained
    validation_fraction: float
    validation: list[Source]
    duplicates: str
    text_column: str
    shard_tokens: int

    @property
    def files(self) -> list[SourceFile]:
        """The files of `sources`, in order."""
        return files_of(self.sources)

    @property
    def training_fraction(self) -> float:
        """The fraction of `sources` that is for validation."""
        return TRAIN_ALL if self.validation else self.validation_fraction

    def jobs(self, tokenizer: Tokenizer, held_out: Path | None) -> list[Job]:
        """The groups of all sources, in the order of their tokens; `held_out` is the file of what `validation` holds."""
        groups = [(files, self.training_fraction, held_out) for source in self.sources for files in group(source.files)]
        groups += [(files, VALIDATE_ALL, None) for source in self.validation for files in group(source.files)]
        return [
            Job(files, self.out / PARTS, tokenizer.name, tokenizer.hash, tokenizer.eos, fraction, number, known)
            for number, (files, fraction, known) in enumerate(groups)
        ]


def files_of(sources: list[Source]) -> list[SourceFile]:
    """The files of all sources, in order."""
    return [file for source in sources for file in source.files]


def check_request(fraction: float, duplicates: str, shard_tokens: int, workers: int | None) -> None:
    """Raise `UserError` for a number or a word that cannot be."""
    if not 0 < fraction < 1:
        raise UserError(f"validation fraction must lie between 0 and 1, got {fraction:g}")
    if duplicates not in POLICIES:
        raise unknown("way with duplicates", duplicates, POLICIES)
    if shard_tokens < 1:
        raise UserError(f"shards must hold at least 1 token, got {shard_tokens}")
    if workers is not None and workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")


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
    if found.validation_fraction != plan.training_fraction:
        return f"validation fraction {found.validation_fraction:g} there, {plan.training_fraction:g} asked for"
    if found.text_column != plan.text_column:
        return f"text column {found.text_column!r} there, {plan.text_column!r} asked for"
    if found.duplicates_dropped and plan.duplicates == "refuse":
        return f"{found.duplicates_dropped} duplicates dropped there, to be refused now"
    return other_sources(found.sources, plan.sources, "sources") or other_sources(
        found.validation_sources, plan.validation, "validation sources"
    )


def other_sources(found: tuple[SourceRecord, ...], sources: list[Source], what: str) -> str | None:
    """How the sources of a finished folder differ from those asked for, or None. What is on the hub is known by its name alone."""
    there, wanted = [source.name for source in found], [source.name for source in sources]
    if there != wanted:
        return f"{what} {', '.join(there) or 'none'} there, {', '.join(wanted) or 'none'} asked for"
    for record, source in zip(found, sources, strict=True):
        names = {file.name for file in source.files}
        if odd := sorted(record.files.keys() ^ names):
            return f"{source.name}/{odd[0]} is {'new' if odd[0] in names else 'gone'} since then"
        for file in source.files:
            if not is_remote(file) and hash_file(file.path) != record.files[file.name]:
                return f"{file.label} has changed since then"
    return None
