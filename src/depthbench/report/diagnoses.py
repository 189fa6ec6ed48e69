"""Which diagnoses a report shows: of each table, the deepest shape that most designs were diagnosed at, one run a design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from depthbench.report.content import Content, Section
from depthbench.verdict.rows import Shape


@dataclass(frozen=True)
class Diagnosed:
    """`measures` of one run of each design, by label in the order of the table, all at one shape."""

    title: str
    shape: Shape
    measures: dict[str, dict[str, Any]]
    thresholds: dict[str, float]


def diagnosed(content: Content, diagnoses: Mapping[str, dict[str, Any]]) -> list[Diagnosed]:
    """What of `diagnoses`, by the names of run folders, each section shows; nothing for a section without any."""
    found = [_of_section(section, diagnoses) for section in content.sections]
    return [item for item in found if item is not None]


def _of_section(section: Section, diagnoses: Mapping[str, dict[str, Any]]) -> Diagnosed | None:
    by_shape: dict[Shape, dict[str, dict[str, Any]]] = {}
    for cell in section.summary.drawn:
        for row in sorted(section.table.rows, key=lambda row: row.seed):
            same = row.label == cell.label and row.learning_rate == cell.choice.chosen
            if same and (row.n_layers, row.d_model) == (cell.shape.n_layers, cell.shape.d_model) and row.run in diagnoses:
                by_shape.setdefault(cell.shape, {}).setdefault(cell.label, diagnoses[row.run])
    if not by_shape:
        return None
    most = max(len(found) for found in by_shape.values())
    shape = max((shape for shape, found in by_shape.items() if len(found) == most), key=lambda shape: shape.order)
    chosen = by_shape[shape]
    settings = next(iter(chosen.values()))["settings"]
    thresholds = {"causal": settings["causal_threshold"], "permutation": settings["permutation_threshold"]}
    measures = {label: chosen[label]["measures"] for label in section.summary.labels if label in chosen}
    return Diagnosed(section.table.title, shape, measures, thresholds)
