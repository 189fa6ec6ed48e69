"""`depthbench data prepare` and `depthbench data show`."""

from __future__ import annotations

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
    prepare_tokens(
        list(verb.sources),
        verb.out,
        tokenizer=verb.tokenizer,
        eos=verb.eos,
        validation_fraction=verb.validation_fraction,
        workers=verb.workers or None,
    )
    return _print(describe(verb.out), verb.json)


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
    for source in facts["sources"]:
        out.print(f"source {escape(source['name'])}: {source['files']:,} files, {source['bytes'] / 1e6:.2f} MB")
    if facts["skipped"]:
        out.print(f"skipped {len(facts['skipped'])} files that are not text, listed in manifest.json; the first is")
        out.print(f"  {escape(facts['skipped'][0]['file'])}: {escape(facts['skipped'][0]['reason'])}")
    if facts["empty_documents"] or facts["ignored"]:
        kinds = sorted(facts["ignored"].items(), key=lambda item: -item[1])
        named = ", ".join(f"{ending} {count}" for ending, count in kinds[:4]) + (", …" if len(kinds) > 4 else "")
        others = f" and {sum(facts['ignored'].values())} files of other kinds ({escape(named)})" if kinds else ""
        out.print(f"left out {facts['empty_documents']} empty documents{others}")
    checked = "every hash checked" if facts["verified"] else "sizes checked; --verify hashes everything"
    out.print(f"fingerprint {facts['fingerprint'][:16]} ({checked})")
    return 0
