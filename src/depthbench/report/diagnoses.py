"""Which diagnoses a report shows: of each table, the deepest shape that most designs were diagnosed at, one run a design."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from depthbench.report.content import Content, Section
from depthbench.verdict.rows import ResultRow, Shape
from depthbench.verdict.summary import CellSummary


@dataclass(frozen=True)
class Diagnosed:
    """`measures` of one run of each design, by label in the order of the table, all at one shape. `differing`: the measures whose
    windows are not the same for all designs; `one_code`: whether all were measured by the same code.
    """

    title: str
    shape: Shape
    measures: dict[str, dict[str, Any]]
    differing: tuple[str, ...] = ()
    one_code: bool = True

    def notes(self, *shown: str) -> list[str]:
        """What a chart of the measures `shown` has to say about the designs side by side."""
        differ = [measure for measure in self.differing if measure in shown]
        notes = [f"The designs were measured on different windows: {', '.join(differ)}."] if differ else []
        return notes + ([] if self.one_code else ["The designs were measured by different code."])

    def thresholds(self, score: str) -> dict[str, float]:
        """The threshold that the late share of each design was taken at; `score` is causal or permutation."""
        found = {}
        for label, measures in self.measures.items():
            for value in scores_of(measures, score).values():
                found[label] = float(value["late"]["threshold"])
        return found


def scores_of(measures: dict[str, Any], score: str) -> dict[str, Any]:
    """The causal (under the published rule, which comes first) or permutation scores by kind: trained, untrained."""
    if score == "permutation":
        return dict(measures.get("permutation", {}))
    published: dict[str, Any] = next(iter(measures.get("causal", {}).values()), {})
    return {kind: value["mean_of_ratios"] for kind, value in published.items()}


def diagnosed(content: Content, diagnoses: Mapping[str, dict[str, Any]]) -> list[Diagnosed]:
    """What of `diagnoses`, by the names of run folders, each section shows; nothing for a section without any."""
    found = [_of_section(section, diagnoses) for section in content.sections]
    return [item for item in found if item is not None]


def best_runs(section: Section) -> Iterator[tuple[CellSummary, list[ResultRow]]]:
    """Every design and shape with its runs at the best learning rate, by seed."""
    for cell in section.summary.drawn:
        rows = [row for row in section.table.rows if row.label == cell.label and row.learning_rate == cell.choice.chosen]
        rows = [row for row in rows if (row.n_layers, row.d_model) == (cell.shape.n_layers, cell.shape.d_model)]
        yield cell, sorted(rows, key=lambda row: row.seed)


def _of_section(section: Section, diagnoses: Mapping[str, dict[str, Any]]) -> Diagnosed | None:
    by_shape: dict[Shape, dict[str, dict[str, Any]]] = {}
    for cell, rows in best_runs(section):
        run = next((row.run for row in rows if row.run in diagnoses), None)
        if run is not None:
            by_shape.setdefault(cell.shape, {})[cell.label] = diagnoses[run]
    if not by_shape:
        return None
    most = max(len(found) for found in by_shape.values())
    shape = max((shape for shape, found in by_shape.items() if len(found) == most), key=lambda shape: shape.order)
    chosen = by_shape[shape]
    hashes: dict[str, set[str]] = {}
    for found in chosen.values():
        for measure, drawn in found["windows"].items():  # not every design has every measure
            hashes.setdefault(measure, set()).add(drawn["sha256"])
    differ = tuple(measure for measure, seen in hashes.items() if len(seen) > 1)
    code = {found["identity"]["code"] for found in chosen.values()}
    measures = {label: chosen[label]["measures"] for label in section.summary.labels if label in chosen}
    return Diagnosed(section.table.title, shape, measures, differ, len(code) <= 1)
