"""`summary.json`: everything that the tables of a report say, for machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from depthbench.report.content import Content, Section
from depthbench.report.notes import notes
from depthbench.verdict.published import QUANTITY, SOURCE, published_gains
from depthbench.verdict.rows import Shape
from depthbench.verdict.summary import CONVENTIONS, CellSummary, Summary, Trend

FORMAT = 2
REPORT_CONVENTIONS = {
    **CONVENTIONS,
    "interval": "low and high: 95 %, unadjusted for other comparisons; null with one seed",
    "rank": "first and last place by depth gain that the pairs allow after Holm's adjustment; equal: no tie",
    "pair": "a minus b; gain above 0: a gains more from depth; level below 0: a has the lower mean loss over the compared shapes",
    "learning_rates.loss": "mean over the seeds that all rates of the cell share; null if a run diverged",
    "refined": "lowest point of the parabola through the chosen learning rate and its neighbours: an estimate, not a run",
}


def summary_content(content: Content) -> dict[str, Any]:
    """The content of `summary.json`: plain values, null where there is no number."""
    return {
        "format": FORMAT,
        "title": content.title,
        "conventions": REPORT_CONVENTIONS,
        "tables": [_section(section) for section in content.sections],
        "scale_law": asdict(content.ladder) if content.ladder else None,
        "published": {"source": SOURCE, "quantity": QUANTITY, "depth_gain": published_gains()},
        "missing": list(content.missing),
    }


def _section(section: Section) -> dict[str, Any]:
    rows = section.table.rows
    return {
        "title": section.table.title,
        "data": {
            "fingerprint": section.table.data_fingerprint,
            "validation_sha256": rows[0].validation_sha256,
            "recipe_hash": section.table.recipe_hash,
            "code_hashes": sorted({row.code_hash for row in rows}),
            "code_versions": sorted({row.code_version for row in rows}),
        },
        "n_runs": len(rows),
        "shapes": [_shape(section.summary, shape) for shape in section.summary.shapes],
        "cells": [_cell(cell) for cell in section.summary.cells],
        "compared_shapes": [asdict(shape) for shape in section.summary.compared],
        "designs": _designs(section),
        "margin": section.verdicts.margin,
        "pairs": [asdict(pair) for pair in section.verdicts.pairs],
        "agreement": asdict(section.agreement) if section.agreement else None,
        "notes": notes(section),
    }


def _shape(summary: Summary, shape: Shape) -> dict[str, Any]:
    totals = [cell.total_parameters for cell in summary.cells if cell.shape == shape]
    return {
        **asdict(shape),
        "aspect_ratio": shape.aspect_ratio,
        "total_parameters": [min(totals), max(totals)],
        "d_ff": list(summary.d_ff_span(shape)),
    }


def _cell(cell: CellSummary) -> dict[str, Any]:
    """A cell with every learning rate that was tried."""
    made = asdict(cell)
    choice = made.pop("choice")
    return {
        **made,
        "aspect_ratio": cell.shape.aspect_ratio,
        "own_parameters": cell.own_share,
        "learning_rate": choice.pop("chosen"),
        "learning_rates": choice.pop("tried"),
        **choice,
    }


def _designs(section: Section) -> list[dict[str, Any]]:
    """Verdicts, ranked first to last, with the best shape of each design and its own parameters."""
    trends = {trend.label: trend for trend in section.summary.trends}
    return [asdict(design) | _best(trends[design.label]) for design in section.verdicts.designs]


def _best(trend: Trend) -> dict[str, Any]:
    return {
        "best_shape": asdict(trend.best.shape) if trend.best else None,
        "best_loss": trend.best.loss if trend.best else None,
        "own_parameters": list(trend.own_share),
    }
