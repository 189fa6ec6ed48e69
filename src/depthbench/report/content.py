"""What a report shows: a section for every table, the ladder that they make up, and what is missing. Numbers alone, no layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from depthbench.verdict.published import Agreement, agreement
from depthbench.verdict.rows import ResultRow
from depthbench.verdict.scaling import Ladder, scale_laws
from depthbench.verdict.summary import CellSummary, Summary, aggregate
from depthbench.verdict.tables import Table, tables
from depthbench.verdict.verdicts import DesignVerdict, Verdicts, judge


@dataclass(frozen=True)
class Section:
    """One table with all that follows from it."""

    table: Table
    summary: Summary
    verdicts: Verdicts
    agreement: Agreement | None

    @property
    def most_seeds(self) -> int:
        """The paired seeds of the design that has the most; below 2 nothing has an interval."""
        return max((design.n for design in self.verdicts.designs), default=0)

    @property
    def with_gain(self) -> list[DesignVerdict]:
        """The designs with a depth gain, ranked first to last."""
        return [design for design in self.verdicts.designs if design.gain is not None]

    @property
    def reference(self) -> str:
        """The design that the others are set against: Pre-LN, or without it the first."""
        labels = self.summary.labels
        return "preln" if "preln" in labels else labels[0]


@dataclass(frozen=True)
class Content:
    """All of a report. `missing` are lines on runs without a result."""

    title: str
    sections: tuple[Section, ...]
    ladder: Ladder | None
    missing: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The designs of all sections, each once."""
        return tuple(dict.fromkeys(label for section in self.sections for label in section.summary.labels))

    @property
    def n_runs(self) -> int:
        """Finished runs, diverged ones included."""
        return sum(len(section.table.rows) for section in self.sections)


def read(rows: Sequence[ResultRow], missing: Sequence[str], where: str | Path, title: str = "") -> Content:
    """Judge `rows`. Raises `UserError` if there are none or they may not be reported together (see `tables`)."""
    found = tables(rows, where)
    return Content(title, tuple(_section(table) for table in found), scale_laws(found), tuple(missing))


def _section(table: Table) -> Section:
    summary = aggregate(table.rows)
    verdicts = judge(summary)
    return Section(table, summary, verdicts, agreement(summary, verdicts))


def searched(cell: CellSummary) -> bool:
    """Whether a cell had more than one learning rate to choose from."""
    return len(cell.choice.tried) > 1
