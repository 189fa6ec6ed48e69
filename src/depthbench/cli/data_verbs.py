"""`depthbench data prepare` and `depthbench data show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_json
from depthbench.errors import UserError


def prepare(verb: arguments.DataPrepare) -> int:
    """Make token files."""
    from depthbench.data import describe
    from depthbench.data import prepare as prepare_tokens

    if not verb.sources:
        raise UserError("give at least one file, folder or stdlib, for instance: depthbench data prepare stdlib --out data/stdlib")
    if verb.workers < 0:
        raise UserError(f"workers must be at least 1, or 0 to choose, got {verb.workers}")
    if verb.validation and verb.validation_fraction != arguments.DataPrepare(sources=()).validation_fraction:
        raise UserError("--validation and --validation-fraction both say what is kept for validation; give one")
    prepare_tokens(
        list(verb.sources),
        verb.out,
        tokenizer=_tokenizer(verb),
        eos=verb.eos,
        validation_fraction=verb.validation_fraction,
        validation=verb.validation,
        duplicates=verb.duplicates,
        text_column=verb.text_column,
        shard_tokens=verb.shard_tokens,
        workers=verb.workers or None,
    )
    return _print(describe(verb.out), verb.json)


def _tokenizer(verb: arguments.DataPrepare) -> str:
    usual = arguments.DataPrepare(sources=()).tokenizer
    if not verb.train_bpe:
        return verb.tokenizer
    name = f"bpe-{verb.train_bpe}"
    if verb.tokenizer not in (usual, name):
        raise UserError(f"--train-bpe {verb.train_bpe} asks for the tokenizer {name}, --tokenizer for {verb.tokenizer}; give one")
    return name


def show(verb: arguments.DataShow) -> int:
    """Describe token files."""
    from depthbench.data import describe

    return _print(describe(verb.folder, verify=verb.verify), verb.json)


def _print(facts: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(facts)
        return 0
    out = console()
    tokenizer = f"tokenizer {escape(facts['tokenizer']['name'])} ({facts['tokenizer']['hash'][:8]})"
    stored = f"vocabulary {facts['vocab_size']:,}, EOS {facts['eos']}, stored as {facts['dtype']}"
    out.print(f"[bold]{escape(facts['folder'])}[/bold]")
    out.print(f"{tokenizer}, {stored}")
    table = make_table("", "documents", "tokens", "MB of text", "bytes a token", "sha256")
    for side in ("train", "validation"):
        split = facts[side]
        numbers = (
            f"{split['documents']:,}",
            f"{split['tokens']:,}",
            f"{split['bytes'] / 1e6:.2f}",
            f"{split['bytes_per_token']:.3f}",
        )
        table.add_row(side, *numbers, split["sha256"][:16])
    out.print(table)
    for side, key in (("", "sources"), ("validation ", "validation_sources")):
        for source in facts[key]:
            out.print(f"{side}source {escape(source['name'])}: {source['files']:,} files, {source['bytes'] / 1e6:.2f} MB")
    if facts["skipped"]:
        out.print(f"skipped {len(facts['skipped'])} files that are not text, listed in manifest.json; the first is")
        out.print(f"  {escape(facts['skipped'][0]['file'])}: {escape(facts['skipped'][0]['reason'])}")
    for line in _left_out(facts):
        out.print(f"left out {line}")
    checked = "every hash checked" if facts["verified"] else "sizes checked; --verify hashes everything"
    out.print(f"fingerprint {facts['fingerprint'][:16]} ({checked})")
    return 0


def _left_out(facts: dict[str, Any]) -> Iterator[str]:
    kinds = sorted(facts["ignored"].items(), key=lambda item: -item[1])
    if facts["empty_documents"] or kinds:
        named = ", ".join(f"{ending} {count}" for ending, count in kinds[:4]) + (", …" if len(kinds) > 4 else "")
        others = f" and {sum(facts['ignored'].values())} files of other kinds ({escape(named)})" if kinds else ""
        yield f"{facts['empty_documents']} empty documents{others}"
    if facts["null_documents"]:
        yield f"{facts['null_documents']} rows without text"
    if facts["duplicates_dropped"]:
        yield f"{facts['duplicates_dropped']} training documents that are validation documents too"
