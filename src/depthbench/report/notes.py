"""What a reader must know beside the numbers: seeds, diverged runs, mixed recipes, what the trend rests on, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from depthbench.text import some
from depthbench.verdict.rows import ResultRow
from depthbench.verdict.summary import CellSummary, Summary


def notes(rows: Sequence[ResultRow], summary: Summary) -> list[str]:
    """One sentence each, the weightiest first."""
    elsewhere = [cell for cell in summary.drawn if cell.diverged_steps]
    found = [seeds_note(summary), rates_note(summary), diverged_note(summary)]
    found.append(_name_diverged("Diverged at a learning rate that was not chosen", elsewhere))
    found += [*_trend_notes(summary), *_mixtures(rows)]
    return [note for note in found if note]


def seeds_note(summary: Summary) -> str:
    """How many seeds stand behind a number, and what that number of seeds cannot carry."""
    counts = sorted({len(cell.seeds) for cell in summary.drawn})
    if not counts:
        return ""
    if counts == [1]:
        return "One seed per cell: losses, slopes and gains carry no interval."
    if counts[0] == 1:
        return f"1 to {counts[-1]} seeds per cell, ± sample standard deviation; where n=1, and for slopes and gains, no interval."
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean ± sample standard deviation over {span} seeds; slopes and gains are of the means and carry no interval."


def rates_note(summary: Summary) -> str:
    """Which learning rates were tried, and that the best was taken if there were several."""
    tried = ", ".join(f"{rate:g}" for rate in sorted({rate for cell in summary.cells for rate in cell.learning_rates}))
    if all(len(cell.learning_rates) == 1 for cell in summary.cells):
        return f"Learning rate {tried}."
    return f"Every design and shape at the best of its learning rates; tried: {tried}."


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


def shapes_span(summary: Summary) -> str:
    """The compared shapes from first to last: `2 × 160 to 16 × 56 (3 shapes)`."""
    shapes = summary.compared
    return f"{shapes[0].name} to {shapes[-1].name} ({len(shapes)} shapes)"


def _trend_notes(summary: Summary) -> list[str]:
    with_trend = [trend.label for trend in summary.trends if trend.slope is not None]
    if not with_trend:
        return ["No depth trend: no two depths are finished for the same designs."]
    without = [trend.label for trend in summary.trends if trend.slope is None]
    found = [f"Slope and gain use the shapes finished by all compared designs: {shapes_span(summary)}."]
    if without:
        found.append(f"Fewer than two depths finished, so not compared: {some(without)}.")
    return found


def _mixtures(rows: Sequence[ResultRow]) -> list[str]:
    found = []
    for what, values in (
        ("training data", [row.data_fingerprint[:12] for row in rows]),
        ("recipes", [row.recipe_hash[:12] for row in rows]),
        ("training steps", [str(row.steps) for row in rows]),
        ("code versions", [row.code_version for row in rows]),
    ):
        counts = Counter(values)
        if len(counts) > 1:
            sides = [f"{value} ({count} of {len(rows)} runs)" for value, count in counts.most_common()]
            found.append(f"The runs differ in {what}: {some(sides)}.")
    return found


def provenance(rows: Sequence[ResultRow]) -> str:
    """Data, recipe and code behind the table, in one line."""
    first = rows[0]
    steps = sorted({row.steps for row in rows})
    tokens = sorted({row.tokens for row in rows})
    return (
        f"data {_hashes(row.data_fingerprint for row in rows)}, validation {first.validation_sha256[:12]};"
        f" recipe {_hashes(row.recipe_hash for row in rows)}: {_span(steps)} steps, {_span(tokens)} tokens;"
        f" code {', '.join(sorted({row.code_version for row in rows}))}"
    )


def _hashes(values: Iterable[str]) -> str:
    return ", ".join(sorted({value[:12] for value in values}))


def _span(values: Sequence[int]) -> str:
    return f"{values[0]:,}" if values[0] == values[-1] else f"{values[0]:,} to {values[-1]:,}"
