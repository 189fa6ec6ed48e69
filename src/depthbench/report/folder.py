"""The report on disk: `results.csv`, `summary.json` and the chart as HTML, PNG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import make_folder, write_json, write_text
from depthbench.report import charts
from depthbench.report.notes import notes
from depthbench.verdict.rows import ResultRow, one_table, to_csv
from depthbench.verdict.summary import CONVENTIONS, CellSummary, Summary, Trend, aggregate

FORMAT = 1


def write_report(rows: Sequence[ResultRow], missing: Sequence[str], out: Path, title: str) -> list[Path]:
    """Write the report on `rows` into the folder `out` and give the paths of its files; `missing` are lines on unfinished cells.

    Each file replaces the one before in one step. Raises `UserError`, before anything is written, if there are no rows or they do
    not belong in one table, and if the folder cannot be written to.
    """
    table = one_table(rows, out)
    summary = aggregate(table)
    make_folder(out)
    csv_path, json_path = out / "results.csv", out / "summary.json"
    try:
        write_text(csv_path, to_csv(table))
        write_json(json_path, summary_content(table, summary, missing, title))
        return [csv_path, json_path, *charts.save(charts.loss_chart(summary, missing, title), out)]
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write the report to {out}: {reason}; free space or choose another folder") from error


def summary_content(rows: Sequence[ResultRow], summary: Summary, missing: Sequence[str], title: str) -> dict[str, Any]:
    """Everything the tables say, with its conventions, ready for JSON."""
    return {
        "format": FORMAT,
        "title": title,
        "conventions": CONVENTIONS,
        "data": {
            "validation_sha256": rows[0].validation_sha256,
            "fingerprints": sorted({row.data_fingerprint for row in rows}),
            "recipe_hashes": sorted({row.recipe_hash for row in rows}),
            "code_versions": sorted({row.code_version for row in rows}),
        },
        "cells": [_cell(cell) for cell in summary.cells],
        "compared_shapes": [asdict(shape) for shape in summary.compared],
        "trends": [_trend(trend) for trend in summary.trends],
        "notes": notes(rows, summary),
        "missing": list(missing),
    }


def _cell(cell: CellSummary) -> dict[str, Any]:
    return {**asdict(cell), "aspect_ratio": cell.shape.aspect_ratio, "own_parameters": cell.own_share}


def _trend(trend: Trend) -> dict[str, Any]:
    return {
        "label": trend.label,
        "slope": trend.slope,
        "depth_gain": trend.gain,
        "best_n_layers": trend.best.shape.n_layers if trend.best else None,
        "best_loss": trend.best.loss if trend.best else None,
        "own_parameters": list(trend.own_share),
    }
