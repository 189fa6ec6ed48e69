"""`depthbench plan`: what a study takes, before it takes it."""

from __future__ import annotations

from dataclasses import asdict

from rich.markup import escape

from depthbench.cli import arguments
from depthbench.cli.output import console, make_table, print_json
from depthbench.cli.setup import cores, is_small, open_study, pin, warn_of_budget
from depthbench.data import TokenData, default_data
from depthbench.data.defaults import DEFAULTS, find_tokens
from depthbench.data.manifest import MANIFEST
from depthbench.errors import UserError
from depthbench.progress import duration
from depthbench.shape import human, parse_count
from depthbench.study.cell import DataPin
from depthbench.study.plan import CPU_UTILISATION, PlanRow, measured_matmul_rate, plan_rows, total_flops
from depthbench.study.search import StudyWork
from depthbench.study.study import Study

UNPREPARED = "not prepared"


def plan(verb: arguments.Plan) -> int:
    """Show what a study takes."""
    study = open_study(verb.study, verb.changes)
    data = _planned_pin(study, verb.changes.data)
    rows = plan_rows(StudyWork(study, data))
    workers = verb.workers or (cores() if is_small(study.solved_shapes(), "cpu") else 1)
    rate, how = _rate(verb.flops_per_second)
    seconds, most = (total_flops(rows, most) / rate / workers for most in (False, True))
    warn_of_budget(study)
    if verb.json:
        content = {
            "study": study.name,
            "lr_policy": study.lr_policy,
            "learning_rates": study.learning_rates,
            "seeds": study.seeds,
            "match": study.match,
            "needs": study.needs if data.fingerprint == UNPREPARED else "",
            "cells": sum(row.cells for row in rows),
            "most_cells": sum(row.most_cells for row in rows),
            "total_flops": total_flops(rows),
            "rows": [asdict(row) for row in rows],
        }
        print_json(content | {"estimated_seconds": seconds, "workers": workers, "flops_per_second": rate})
        return 0
    _print_rows(study, rows)
    _print_totals(study, data, rows)
    upper = f", up to {duration(most)} if every search is widened to its limit" if most > seconds else ""
    console().print(
        f"about {duration(seconds)} with {workers} worker{'s' * (workers > 1)} at {human(rate)}FLOP/s each ({how}){upper};"
        " a rough figure: designs with much mixing run below it"
    )
    return 0


def _rate(given: str) -> tuple[float, str]:
    """FLOPs a second of one worker, and where the figure comes from."""
    if not given:
        return CPU_UTILISATION * measured_matmul_rate(), f"{CPU_UTILISATION:.0%} of a matrix product's rate on one thread here"
    rate = parse_count(given)
    if rate <= 0:
        raise UserError(f"--flops-per-second must be above 0, got {given}")
    return rate, "as given"


def _planned_pin(study: Study, data: str) -> DataPin:
    """The pin of data that is there; planning does not prepare any."""
    if data:
        return pin(data, TokenData.open(find_tokens(data, study.tokenizer)))
    if study.data in DEFAULTS:
        cached = default_data(study.data, study.tokenizer)
        if (cached / MANIFEST).exists():
            return pin(study.data, TokenData.open(cached))
    return DataPin(study.data, study.tokenizer, UNPREPARED, UNPREPARED)


def _print_rows(study: Study, rows: list[PlanRow]) -> None:
    out = console()
    summary = f": {escape(study.summary)}" if study.summary else ""
    out.print(f"[bold]{escape(study.name)}[/bold]{summary}")
    matching = study.match == "total"
    heads = ["design", "layers", "width", "d_ff", "aspect", "backbone", "own", "total", *(["off"] if matching else [])]
    table = make_table(*heads, "cells", "updates", "tokens", "FLOPs")
    for row in rows:
        own = f"{row.design_parameters / (row.total_parameters - row.design_parameters):+.1%}" if row.design_parameters else "–"
        cells = str(row.cells) if row.cells == row.most_cells else f"{row.cells}–{row.most_cells}"
        table.add_row(
            escape(row.design),
            *map(str, (row.n_layers, row.d_model, row.d_ff)),
            f"{row.aspect_ratio:.1f}",
            *(human(row.backbone_parameters), own, human(row.total_parameters)),
            *([f"{row.off_total:+.2%}" + " !" * (not row.matched)] if matching else []),
            *(cells, f"{row.steps:,}", human(row.tokens), human(row.flops)),
        )
    out.print(table)
    if matching:
        out.print("off: the total relative to Pre-LN's at this depth and width, after d_ff was narrowed.")
        for row in rows:
            if not row.matched:
                out.print(f"! {escape(row.design)} at {row.n_layers} × {row.d_model} cannot meet Pre-LN's total; run refuses it")


def _print_totals(study: Study, data: DataPin, rows: list[PlanRow]) -> None:
    out = console()
    least, most = sum(row.cells for row in rows), sum(row.most_cells for row in rows)
    rates = ", ".join(f"{rate:g}" for rate in study.learning_rates)
    policy = {
        "fixed": f"learning rates {rates}",
        "per_cell": f"a search for every design and shape from {rates}, up to {study.widen} more on a side",
        "per_design": f"a search for every design at one shape from {rates}, up to {study.widen} more on a side",
    }[study.lr_policy]
    state = "not prepared yet" if data.fingerprint == UNPREPARED else f"fingerprint {data.fingerprint[:12]}"
    cells = f"{least}" if least == most else f"{least} to {most}"
    out.print(f"{cells} cells: {policy}; seeds {', '.join(map(str, study.seeds))}; data {escape(data.source)} ({state})")
    if study.needs and data.fingerprint == UNPREPARED:
        out.print(f"To run it you need {escape(study.needs)}")
    tokens = sum(row.tokens * row.cells for row in rows)
    out.print(
        f"{human(tokens)} tokens and {human(total_flops(rows))} FLOPs in all (matrix products; 2 a multiply-add; backward = 2"
        " forward). Tokens and FLOPs a cell; own = the design's parameters beyond Pre-LN."
    )
