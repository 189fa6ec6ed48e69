"""Which scores of tasks a report shows: of each table, every design and shape at its best learning rate, means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from depthbench.report.content import Content, Section
from depthbench.report.diagnoses import best_runs
from depthbench.verdict.rows import Shape

GROUP_MEAN = "mean"


@dataclass(frozen=True)
class TaskScore:
    """Of one design and shape on a task, or on the mean of a group (`task` is "mean"): nats per token and bits per byte, means over
    the seeds that have them. Errors are those over documents, which all seeds share.
    """

    label: str
    shape: Shape
    group: str
    task: str
    nll: float
    nll_error: float | None
    bits_per_byte: float
    bits_per_byte_error: float | None
    seeds: int


@dataclass(frozen=True)
class Evaluated:
    """The scores of one table; `notes` say what differs between the runs."""

    title: str
    scores: tuple[TaskScore, ...]
    notes: tuple[str, ...]

    def panels(self) -> list[tuple[str, str]]:
        """Group and task of everything that was scored: groups in order, the tasks of each before their mean."""
        found = dict.fromkeys((score.group, score.task) for score in self.scores)
        return sorted(found, key=lambda item: (item[0], item[1] == GROUP_MEAN))


def evaluated(content: Content, evaluations: Mapping[str, dict[str, Any]]) -> list[Evaluated]:
    """What of `evaluations`, by the names of run folders, each section shows; nothing for a section without any."""
    found = [_of_section(section, evaluations) for section in content.sections]
    return [item for item in found if item is not None]


def _of_section(section: Section, evaluations: Mapping[str, dict[str, Any]]) -> Evaluated | None:
    scores: list[TaskScore] = []
    texts: dict[str, set[str]] = {}
    code = set()
    for cell, rows in best_runs(section):
        of_cell = [evaluations[row.run] for row in rows if row.run in evaluations]
        for content in of_cell:
            code.add(content["identity"]["code"])
            for name, task in content["tasks"].items():
                texts.setdefault(name, set()).add(task["sha256"])
        scores += _scores(cell.label, cell.shape, of_cell)
    if not scores:
        return None
    differ = [name for name, seen in texts.items() if len(seen) > 1]
    notes = [f"The runs were scored on different texts of {', '.join(differ)}."] if differ else []
    notes += ["The runs were scored by different code."] if len(code) > 1 else []
    return Evaluated(section.table.title, tuple(scores), tuple(notes))


def _scores(label: str, shape: Shape, contents: list[dict[str, Any]]) -> list[TaskScore]:
    values: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for content in contents:
        for name, task in content["tasks"].items():
            values.setdefault((task["group"], name), []).append(task)
        for group, mean in content["groups"].items():
            if len(mean["tasks"]) > 1:
                values.setdefault((group, GROUP_MEAN), []).append(mean)
    return [
        TaskScore(
            label=label,
            shape=shape,
            group=group,
            task=task,
            nll=_mean(found, "nll"),
            nll_error=_error(found, "nll_standard_error"),
            bits_per_byte=_mean(found, "bits_per_byte"),
            bits_per_byte_error=_error(found, "bits_per_byte_standard_error"),
            seeds=len(found),
        )
        for (group, task), found in values.items()
    ]


def _mean(found: list[dict[str, Any]], key: str) -> float:
    return math.fsum(item[key] for item in found) / len(found)


def _error(found: list[dict[str, Any]], key: str) -> float | None:
    values = [item[key] for item in found]
    return None if any(value is None for value in values) else _mean(found, key)
