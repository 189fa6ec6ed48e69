"""`depthbench status` and `depthbench report`: what a folder of runs holds. They read folders alone and need no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_files, print_json
from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.progress import duration
from depthbench.study.store import RunFolder, RunState, find_runs


def status(verb: arguments.Status) -> int:
    """How every cell stands."""
    entries = [_entry(folder) for folder in find_runs(verb.folder)]
    counts = Counter(str(entry["status"]) for entry in entries)
    if verb.json:
        print_json({"folder": str(verb.folder), "counts": dict(counts), "cells": entries})
        return 0
    table = make_table("cell", "status", "step", "", left=2)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    table.columns[3].justify, table.columns[3].overflow = "left", "ellipsis"
    for entry in entries:
        table.add_row(
            escape(str(entry["cell"])), str(entry["status"]), f"{entry['step']}/{entry['steps']}", escape(str(entry["note"]))
        )
    out = console()
    out.print(table)
    out.print(", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "no cells")
    return 0


def _entry(folder: RunFolder) -> dict[str, Any]:
    """One line of the status."""
    entry = {"run": folder.path.name, "cell": "?", "status": "unreadable", "step": 0, "steps": 0, "host": "", "eta_seconds": None}
    try:
        cell = folder.cell()
    except UserError as error:
        return entry | {"note": str(error)}
    state = folder.state()
    entry |= {"cell": cell.label, "status": state.status, "step": state.step, "steps": cell.recipe.steps}
    loss = state.row.get("loss")
    if state.status == "done":
        note = f"loss {(folder.result() or {})['loss']:.4f}"
    elif state.status == "running":
        host = state.owner.host if state.owner else ""
        eta = _seconds_left(state, cell.recipe.steps)
        entry |= {"host": host, "eta_seconds": eta}
        parts = [f"on {host}" if host else "", f"training loss {loss:.4f}" if loss else "", f"eta {duration(eta)}" if eta else ""]
        note = ", ".join(part for part in parts if part)
    else:
        note = state.note or (f"training loss {loss:.4f}" if loss else "")
    return entry | {"note": note}


def _seconds_left(state: RunState, steps: int) -> float | None:
    """Time to the last update at the rate of the newest one."""
    rate, tokens = state.row.get("tokens_per_second"), state.row.get("tokens")
    return (steps - state.step) * tokens / state.step / rate if rate and tokens and state.step else None


def report(verb: arguments.Report) -> int:
    """The results so far, here and on disk."""
    from depthbench.report import write_report
    from depthbench.report.terminal import render
    from depthbench.study.results import read_diagnoses, read_evaluations, read_results

    rows, missing = read_results(verb.folder)
    if not rows:
        raise UserError(
            f"no finished results in {verb.folder} yet ({len(missing)} cells are planned or running); see depthbench status"
        )
    out = make_folder(verb.out or verb.folder / "report")
    written = write_report(rows, missing, out, verb.folder.name, read_diagnoses(verb.folder), read_evaluations(verb.folder))
    if verb.json:
        print((_written_json(written)).read_text(encoding="utf-8"), end="")
        return 0
    console().print(render(rows, missing))
    print_files(written)
    return 0


def _written_json(written: Sequence[Path]) -> Path:
    """The machine-readable summary among the files of a report."""
    return next(path for path in written if path.suffix == ".json")
