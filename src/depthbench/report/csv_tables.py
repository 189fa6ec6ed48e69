"""`cells.csv` and `pairs.csv`: a line for every design and shape, and for every two designs, of all tables. `diagnosis.csv`: a line
for every number with an interval that a diagnosis of a run has.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from depthbench.report.content import Content, Section
from depthbench.report.evaluations import Evaluated
from depthbench.text import plain
from depthbench.verdict.pairs import Pair
from depthbench.verdict.summary import CellSummary

PLAIN = ("dead_blocks",)
Entry = str | int | float | bool | None


def cells_csv(content: Content) -> str:
    """Every cell with the learning rate chosen, on which edge it lies, and the one that the parabola suggests."""
    return _text(_cell(section, cell) for section in content.sections for cell in section.summary.cells)


def _cell(section: Section, cell: CellSummary) -> dict[str, Entry]:
    return {
        "table": section.table.title,
        "design": cell.label,
        "n_layers": cell.shape.n_layers,
        "d_model": cell.shape.d_model,
        "d_ff": cell.d_ff,
        "aspect_ratio": cell.shape.aspect_ratio,
        "loss": cell.loss,
        "loss_sd": cell.loss_sd,
        "n": len(cell.seeds),
        "learning_rate": cell.learning_rate,
        "edge": cell.choice.edge,
        "refined": cell.choice.refined,
        "refined_loss": cell.choice.refined_loss,
        "learning_rates": " ".join(f"{rate:g}" for rate in cell.learning_rates),
        "n_runs": cell.n_runs,
        "n_diverged": len(cell.diverged_steps),
        "bits_per_byte": cell.bits_per_byte,
        "backbone_parameters": cell.backbone_parameters,
        "total_parameters": cell.total_parameters,
        "design_parameters": cell.design_parameters,
        "tokens_per_second": cell.tokens_per_second,
    }


def pairs_csv(content: Content) -> str:
    """Every pair, a minus b, with intervals, p-values before and after Holm's adjustment, and decisions."""
    return _text(_pair(section, pair) for section in content.sections for pair in section.verdicts.pairs)


def _pair(section: Section, pair: Pair) -> dict[str, Entry]:
    found: dict[str, Entry] = {"table": section.table.title, "a": pair.a, "b": pair.b, "n": pair.n}
    for name, estimate, adjusted, differs in (
        ("gain", pair.gain, pair.gain_p, pair.gain_differs),
        ("level", pair.level, pair.level_p, pair.level_differs),
    ):
        found |= {f"{name}_difference": estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        found |= {f"{name}_p": estimate.p, f"{name}_p_holm": adjusted, f"{name}_differs": differs}
    return found


def diagnosis_csv(content: Content, diagnoses: Mapping[str, Any]) -> str:
    """Every diagnosed run of all tables, long: single numbers, and curves over depth with an `index`. Matrices are in the JSON."""
    return _text(
        {
            "run": row.run,
            "design": row.label,
            "shape": f"{row.n_layers}x{row.d_model}",
            "measure": measure,
            "rule": rule,
            "kind": kind,
            "index": index,
            "value": value,
            "low": low,
            "high": high,
        }
        for section in content.sections
        for row in section.table.rows
        if row.run in diagnoses
        for measure, rule, kind, found in _numbers(diagnoses[row.run]["measures"])
        for index, value, low, high in _points(found)
    )


def evaluation_csv(found: Sequence[Evaluated]) -> str:
    """The scores of tasks and the means of groups, of every design and shape of all tables."""
    return _text(
        {
            "table": item.title,
            "design": score.label,
            "n_layers": score.shape.n_layers,
            "d_model": score.shape.d_model,
            "aspect_ratio": score.shape.aspect_ratio,
            "group": score.group,
            "task": score.task,
            "nll": score.nll,
            "nll_standard_error": score.nll_error,
            "bits_per_byte": score.bits_per_byte,
            "bits_per_byte_standard_error": score.bits_per_byte_error,
            "n": score.seeds,
        }
        for item in found
        for score in item.scores
    )


def _numbers(measures: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Measure, rule, kind, and an interval or a plain number."""
    for name in ("angular", "lens", "usefulness", "mixing"):
        for part, found in measures.get(name, {}).items():
            if part in PLAIN or (isinstance(found, dict) and "low" in found):
                yield f"{name} {part}", "", "trained", found
    if "deviation" in measures.get("paths", {}):
        yield "paths deviation", "", "trained", measures["paths"]["deviation"]
    for rule, kinds in measures.get("causal", {}).items():
        for kind, definitions in kinds.items():
            for definition, found in definitions.items():
                for part in ("share", "mean"):
                    yield f"causal late {part} {definition}", rule, kind, found["late"][part]
    for rule, kinds in measures.get("pruning", {}).items():
        for kind, found in kinds.items():
            yield "pruning change", rule, kind, found["change"]
    for kind, found in measures.get("permutation", {}).items():
        for part in ("share", "mean"):
            yield f"permutation late {part}", "", kind, found["late"][part]


def _points(found: Any) -> Iterator[tuple[Entry, Entry, Entry, Entry]]:
    """Index, value, low and high: of a number, an interval, or a curve of intervals."""
    if not isinstance(found, dict):
        yield "", found, None, None
    elif not isinstance(found["value"], list):
        yield "", found["value"], found["low"], found["high"]
    elif not isinstance(found["value"][0], list):
        none = [None] * len(found["value"])
        yield from zip(range(len(none)), found["value"], found["low"] or none, found["high"] or none, strict=True)


def _text(lines: Iterable[dict[str, Entry]]) -> str:
    """Lines with the same keys as CSV; empty if there are none."""
    text = io.StringIO()
    writer = None
    for line in lines:
        if writer is None:
            writer = csv.DictWriter(text, list(line), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: plain(value) if isinstance(value, str) else value for key, value in line.items()})
    return text.getvalue()
