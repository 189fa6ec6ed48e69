"""`depthbench plan`, `run`, `status` and `report`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.display import make_watcher
from depthbench.cli.output import console, make_table, print_json
from depthbench.cli.setup import cores, execution_for, find_tokens, is_small, open_study, pin
from depthbench.data import TokenData, default_data, load_tokenizer
from depthbench.data.defaults import DEFAULTS
from depthbench.data.manifest import MANIFEST
from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.progress import duration
from depthbench.report import write_report
from depthbench.report.terminal import render
from depthbench.shape import human, parse_count
from depthbench.study.cell import Cell, DataPin
from depthbench.study.plan import CPU_UTILISATION, PlanRow, measured_matmul_rate, plan_rows, total_flops
from depthbench.study.results import read_results
from depthbench.study.runner import Report, Runner
from depthbench.study.store import find_runs
from depthbench.study.study import Study
from depthbench.train.loop import check_data

UNPREPARED = "not prepared"


def plan(verb: arguments.Plan) -> int:
    """Show what a study takes."""
    study = open_study(verb.study, verb.changes)
    cells = study.cells(_planned_pin(study, verb.changes.data))
    rows = plan_rows(cells)
    workers = verb.workers or (cores() if is_small(study.solved_shapes(), "cpu") else 1)
    if verb.flops_per_second:
        rate, how = parse_count(verb.flops_per_second), "as given"
        if rate <= 0:
            raise UserError(f"--flops-per-second must be above 0, got {verb.flops_per_second}")
    else:
        rate = CPU_UTILISATION * measured_matmul_rate()
        how = f"{CPU_UTILISATION:.0%} of a matrix product's rate on one thread here"
    seconds = total_flops(rows) / rate / workers
    if verb.json:
        content = {
            "study": study.name,
            "cells": len(cells),
            "total_flops": total_flops(rows),
            "rows": [asdict(row) for row in rows],
        }
        print_json(content | {"estimated_seconds": seconds, "workers": workers, "flops_per_second": rate})
        return 0
    _print_plan(study, cells, rows)
    out = console()
    out.print(
        f"about {duration(seconds)} with {workers} worker{'s' * (workers > 1)} at {human(rate)}FLOP/s each ({how});"
        " a rough figure: designs with much mixing run below it"
    )
    return 0


def _planned_pin(study: Study, data: str) -> DataPin:
    """The pin of data that is there; planning does not prepare any."""
    if data:
        return pin(data, TokenData.open(find_tokens(data, study.tokenizer)))
    if study.data in DEFAULTS:
        cached = default_data(study.data, study.tokenizer)
        if (cached / MANIFEST).exists():
            return pin(study.data, TokenData.open(cached))
    load_tokenizer(study.tokenizer)
    return DataPin(study.data, study.tokenizer, UNPREPARED, UNPREPARED)


def _print_plan(study: Study, cells: list[Cell], rows: list[PlanRow]) -> None:
    out = console()
    out.print(
        f"[bold]{escape(study.name)}[/bold]: {escape(study.summary)}" if study.summary else f"[bold]{escape(study.name)}[/bold]"
    )
    table = make_table(
        "design", "layers", "width", "d_ff", "aspect", "backbone", "own", "total", "cells", "updates", "tokens", "FLOPs"
    )
    for row in rows:
        own = f"{row.design_parameters / (row.total_parameters - row.design_parameters):+.1%}" if row.design_parameters else "–"
        table.add_row(
            escape(row.design),
            *map(str, (row.n_layers, row.d_model, row.d_ff)),
            f"{row.aspect_ratio:.1f}",
            *(human(row.backbone_parameters), own, human(row.total_parameters)),
            *(f"{row.cells}", f"{row.steps:,}", human(row.tokens), human(row.flops)),
        )
    out.print(table)
    data = cells[0].data
    state = "not prepared yet" if data.fingerprint == UNPREPARED else f"fingerprint {data.fingerprint[:12]}"
    rates = ", ".join(f"{rate:g}" for rate in study.learning_rates)
    out.print(f"{len(cells)} cells: learning rates {rates}; seeds {', '.join(map(str, study.seeds))}; data {data.source} ({state})")
    out.print(
        f"{human(sum(cell.tokens for cell in cells))} tokens and {human(total_flops(rows))} FLOPs in all (matrix products; 2 a"
        " multiply-add; backward = 2 forward). Tokens and FLOPs a cell; own = the design's parameters beyond Pre-LN."
    )


def run(verb: arguments.Run) -> int:
    """Train a study, then report on it."""
    study = open_study(verb.study, verb.changes)
    shapes = study.solved_shapes()
    study.choices()
    if verb.workers < 0:
        raise UserError(f"workers must be at least 1, or 0 to choose, got {verb.workers}")
    small = is_small(shapes, verb.hardware.device)
    workers = verb.workers or (cores() if small else 1)
    execution = execution_for(verb.hardware, 1 if small else max(1, cores() // workers))
    source = verb.changes.data or study.data
    tokens = find_tokens(source, study.tokenizer)
    data = TokenData.open(tokens)
    for shape in shapes:
        check_data(shape, study.recipe, data)
    cells = study.cells(pin(source, data))
    out = make_folder(verb.out or Path("runs") / study.name)
    done = Runner(cells, tokens, out, workers=workers, execution=execution, watcher=make_watcher()).run()
    return _conclude(study, [cell.name for cell in cells], out, done, verb.json)


def _conclude(study: Study, cells: list[str], out: Path, done: Report, as_json: bool) -> int:
    """Report on the study's cells, and say how to go on when something is left."""
    failed = [item for item in done.ended if item.status == "failed"]
    rows, missing = read_results(out, cells)
    if rows:
        written = write_report(rows, missing, out / "report", title=study.name)
    if as_json:
        counts = {status: done.count(status) for status in ("done", "diverged", "failed", "stopped")}
        print_json({"out": str(out), "already_done": done.already_done, **counts, "interrupted": done.interrupted})
    elif rows:
        console().print(render(rows, missing))
        print("report: " + ", ".join(str(path) for path in written))
    for item in failed:
        print(f"failed: {item.cell.label}: {item.error}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} of {len(done.ended)} cells failed; the same command tries them again", file=sys.stderr)
    if done.interrupted:
        print("interrupted; what ran is saved, and the same command continues", file=sys.stderr)
        return 130
    return 1 if failed else 0


def status(verb: arguments.Status) -> int:
    """How every cell stands."""
    entries = []
    for folder in find_runs(verb.folder):
        try:
            cell = folder.cell()
            label, steps = cell.label, cell.recipe.steps
        except UserError as error:
            entries.append(
                {"run": folder.path.name, "cell": "?", "status": "unreadable", "step": 0, "steps": 0, "note": str(error)}
            )
            continue
        state = folder.state()
        row = folder.last_row()
        entry = {"run": folder.path.name, "cell": label, "status": state.status, "step": state.step, "steps": steps}
        result = folder.result() if state.status == "done" else None
        note = (
            f"loss {result['loss']:.4f}"
            if result
            else state.note or (f"training loss {row['loss']:.4f}" if row.get("loss") else "")
        )
        entries.append(entry | {"note": note})
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


def report(verb: arguments.Report) -> int:
    """The results so far, here and on disk."""
    rows, missing = read_results(verb.folder)
    if not rows:
        raise UserError(
            f"no finished results in {verb.folder} yet ({len(missing)} cells are planned or running); see depthbench status"
        )
    written = write_report(rows, missing, make_folder(verb.out or verb.folder / "report"), title=verb.folder.name)
    if verb.json:
        print((written_json(written)).read_text(encoding="utf-8"), end="")
        return 0
    console().print(render(rows, missing))
    print("report: " + ", ".join(str(path) for path in written))
    return 0


def written_json(written: Sequence[Path]) -> Path:
    """The machine-readable summary among the files of a report."""
    return next(path for path in written if path.suffix == ".json")
