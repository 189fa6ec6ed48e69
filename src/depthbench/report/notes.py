"""What a reader must know beside the numbers: seeds, diverged runs, mixed recipes, what the trend rests on, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields

from depthbench.report.rows import ResultRow, Shape
from depthbench.report.summary import CellSummary, Summary

NAMED = 3  # how many cells a note names before it counts the rest


def notes(rows: Sequence[ResultRow], summary: Summary) -> list[str]:
    """One sentence each, the weightiest first."""
    elsewhere = [cell for cell in summary.drawn if cell.diverged_steps]
    found = [seeds_note(summary), diverged_note(summary)]
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
        return f"1 to {counts[-1]} seeds per cell: losses of one seed, and slopes and gains, carry no interval."
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean ± sample standard deviation over {span} seeds; slopes and gains are of the means and carry no interval."


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


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


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
            found.append(f"The runs differ in {what}: {some([f'{value} ({n} runs)' for value, n in counts.most_common()])}.")
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


def headings(summary: Summary) -> dict[Shape, str]:
    """Three lines a shape: layers × width, aspect ratio, total parameters of the designs there.

    Shapes with the same layers and width are told apart by the sizes in which they differ.
    """
    found = {}
    for shape in summary.shapes:
        twins = [other for other in summary.shapes if other.name == shape.name]
        apart = [
            f"{item.name} {getattr(shape, item.name)}"
            for item in fields(Shape)
            if len({getattr(twin, item.name) for twin in twins}) > 1
        ]
        totals = sorted(cell.total_parameters for cell in summary.cells if cell.shape == shape)
        found[shape] = "\n".join([shape.name, *apart, f"AR {shape.aspect_ratio:.3g}", parameter_span(totals[0], totals[-1])])
    return found


def parameter_span(least: int, most: int) -> str:
    """`0.43M`, or `0.43–0.45M` where the designs differ."""
    low, high = parameter_count(least), parameter_count(most)
    if low == high:
        return low
    return f"{low[:-1] if low[-1] == high[-1] else low}–{high}"


def parameter_count(count: int) -> str:
    """Three significant digits: `407M`, `1.61B`, `0.43M`."""
    for unit, size in (("B", 1e9), ("M", 1e5), ("k", 1e3)):
        if count >= size:
            scale = 1e6 if unit == "M" else size
            return f"{count / scale:.3g}{unit}"
    return str(count)


def _hashes(values: Iterable[str]) -> str:
    return ", ".join(sorted({value[:12] for value in values}))


def _span(values: Sequence[int]) -> str:
    return f"{values[0]:,}" if values[0] == values[-1] else f"{values[0]:,} to {values[-1]:,}"
