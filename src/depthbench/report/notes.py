"""What a reader must know beside the numbers, a sentence each: what the seeds can carry, what is compared, what diverged, which
learning rates lie on an edge, what differs between the runs, what speaks against the intervals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from depthbench.report.content import Section, searched
from depthbench.text import some
from depthbench.verdict.rates import HIGH
from depthbench.verdict.rows import ResultRow
from depthbench.verdict.summary import CellSummary, Summary

P_VALUE = re.compile(r"p = ([0-9.e-]+)")
P_PLACE = "{p}"


def notes(section: Section) -> list[str]:
    """The weightiest first."""
    summary = section.summary
    # With one seed everywhere the verdicts' notes say so, and more.
    single = section.most_seeds == 1 and section.verdicts.notes and all(len(cell.seeds) == 1 for cell in summary.drawn)
    found = ["" if single else seeds_note(summary), *section.verdicts.notes, *_trend_notes(section), *_reasons(section)]
    elsewhere = [cell for cell in summary.drawn if cell.diverged_steps]
    found += [diverged_note(summary), _name_diverged("Diverged at a learning rate that was not chosen", elsewhere)]
    found += [edges_note(summary), rates_note(summary), *section.table.notes, *_mixtures(section.table.rows)]
    found += _doubts(section)
    return [note for note in found if note]


def seeds_note(summary: Summary) -> str:
    """How many seeds stand behind a loss, and what a single one cannot carry."""
    counts = sorted({len(cell.seeds) for cell in summary.drawn})
    if not counts:
        return "No run has a loss."
    if counts == [1]:
        return "One seed per cell: a loss has no spread, and no interval, verdict or rank can be given."
    if counts[0] == 1:
        return f"1 to {counts[-1]} seeds per cell: mean ± sample standard deviation, none where n=1."
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Losses: mean ± sample standard deviation over {span} seeds."


def rates_note(summary: Summary) -> str:
    """Which learning rates were tried, and that the best was taken if there were several."""
    tried = ", ".join(f"{rate:g}" for rate in sorted({rate for cell in summary.cells for rate in cell.learning_rates}))
    if not any(searched(cell) for cell in summary.cells):
        return f"Learning rate {tried}."
    return f"Every design and shape at the best of its learning rates; tried: {tried}."


def edges_note(summary: Summary) -> str:
    """Which cells have their best learning rate on an edge of those tried."""
    cells = [cell for cell in summary.drawn if cell.choice.edge]
    if not cells:
        return ""
    named = some([f"{cell.label} {cell.shape.name} ({edge_text(cell)})" for cell in cells])
    return (
        f"{len(cells)} of {len(summary.drawn)} cells have their best learning rate on an edge of those tried, so a better one may"
        f" lie beyond: {named}."
    )


def edge_text(cell: CellSummary) -> str:
    """`0.01, highest`; nothing where the best learning rate is on no edge."""
    if not cell.choice.edge:
        return ""
    return f"{cell.learning_rate:g}, {'highest' if cell.choice.edge == HIGH else 'lowest'}"


def diverged_note(summary: Summary) -> str:
    """Which cells have no loss, because a seed diverged at every learning rate."""
    return _name_diverged("Diverged, so without a loss", [cell for cell in summary.cells if cell.loss is None])


def _name_diverged(what: str, cells: Sequence[CellSummary]) -> str:
    return f"{what}: {some([f'{cell.label} {cell.shape.name} {diverged(cell)}' for cell in cells])}." if cells else ""


def diverged(cell: CellSummary) -> str:
    """The step or steps at which its runs diverged, and how many of them if not all did: `@ 120`, `@ 90–120 (2 of 3 runs)`."""
    first, last = cell.diverged_steps[0], cell.diverged_steps[-1]
    steps = f"@ {first}" if first == last else f"@ {first}–{last}"
    count = len(cell.diverged_steps)
    return steps if count == cell.n_runs else f"{steps} ({count} of {cell.n_runs} runs)"


def _trend_notes(section: Section) -> Iterator[str]:
    if not section.with_gain:
        yield "No depth trend: no two depths are finished for the same designs."
        return
    shapes = section.summary.compared
    yield (
        f"Slopes, gains and pairs use the shapes that all compared designs finished: {shapes[0].name} to {shapes[-1].name}"
        f" ({len(shapes)} shapes)."
    )
    without = [f"{design.label} ({design.reason.rstrip('.')})" for design in section.verdicts.designs if design.gain is None]
    if without:
        yield f"Not compared: {some(without)}."


def _reasons(section: Section) -> Iterator[str]:
    """What a verdict rests on where the table does not show it, and how far the undecided are from one."""
    designs = section.verdicts.designs
    for design in designs:
        if design.verdict and design.verdict.startswith(("best at", "diverges at")):
            yield f"{design.label} {design.verdict}: {design.reason}"
    named = [f"{design.label} {design.needed_seeds}" for design in designs if design.needed_seeds]
    if named:
        yield f"Undecided; seeds that would probably decide, with this noise: {some(named, 10)}."


def _doubts(section: Section) -> Iterator[str]:
    """What speaks against the intervals, once for all designs of which the same must be said; each p-value is in summary.json."""
    alike: dict[str, list[tuple[str, float]]] = {}
    for design in section.verdicts.designs:
        for note in design.notes:
            found = P_VALUE.search(note)
            key = P_VALUE.sub(f"p {P_PLACE}", note) if found else note
            alike.setdefault(key, []).append((design.label, float(found[1]) if found else 0.0))
    for key, named in alike.items():
        equal = "=" if len(named) == 1 else "≤"
        yield f"{some([label for label, _ in named])}: {key.replace(P_PLACE, f'{equal} {max(p for _, p in named):.2g}')}"


def _mixtures(rows: Sequence[ResultRow]) -> Iterator[str]:
    counts = Counter(row.code_version for row in rows)
    if len(counts) > 1:
        sides = [f"{version} ({count} of {len(rows)} runs)" for version, count in counts.most_common()]
        yield f"The runs differ in code version: {some(sides)}."


def provenance(rows: Sequence[ResultRow]) -> str:
    """Data, recipe and code behind a table, in one line."""
    furthest = max(rows, key=lambda row: row.steps)  # a diverged run has fewer updates than its recipe says
    return (
        f"data {_hashes(row.data_fingerprint for row in rows)}, validation {_hashes(row.validation_sha256 for row in rows)};"
        f" recipe {_hashes(row.recipe_hash for row in rows)}: {furthest.steps:,} updates, {furthest.tokens:,} tokens;"
        f" code {_hashes(row.code_hash for row in rows)} (version {', '.join(sorted({row.code_version for row in rows}))})"
    )


def _hashes(values: Iterable[str]) -> str:
    return ", ".join(sorted({value[:12] for value in values}))
