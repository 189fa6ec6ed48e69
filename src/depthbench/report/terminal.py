"""The report in the terminal: losses of designs × shapes, depth trends, and what is missing. Plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from depthbench.report.notes import diverged, notes, provenance
from depthbench.text import parameter_span, percent_span, plain, ratio_text
from depthbench.verdict.rows import ResultRow, Shape, one_table
from depthbench.verdict.summary import CellSummary, Summary, Trend, aggregate

WIDEST = 120  # columns; longer lines are hard to follow
LABEL_WIDTH = 22
GAP = 2
MISSING_LINES = 10


class TerminalReport:
    """A rich renderable that fits the console: a table of more shapes than there is room for is cut into several."""

    def __init__(self, rows: Sequence[ResultRow], missing: Sequence[str], where: str | Path):
        self.rows = one_table(rows, where)
        self.summary = aggregate(self.rows)
        self.missing = missing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        yield from console.render(Group(*self._parts(width)), options.update(width=width))

    def _parts(self, width: int) -> Iterator[RenderableType]:
        yield _title("Validation loss (nats per token)")
        yield from loss_tables(self.summary, width)
        yield _small("* lowest of its column; a column is layers × width, aspect ratio (width / layers), total parameters")
        yield _title("\nDepth trend")
        yield trend_table(self.summary)
        yield _small(
            "slope: nats per token for each doubling of depth, below 0 if deeper is better; gain: loss at the widest compared shape"
            " minus loss at the deepest; best shape: lowest loss, with its bits per byte; own params: the design's own parameters"
            " relative to all others of the model"
        )
        yield Text()
        for note in notes(self.rows, self.summary):
            yield Text(plain(note))
        yield _small(plain(provenance(self.rows)))
        if self.missing:
            yield _title(f"\nMissing: {len(self.missing)} of {len(self.rows) + len(self.missing)} runs")
            for line in self.missing[:MISSING_LINES]:
                yield Text(f"  {plain(line)}")
            if len(self.missing) > MISSING_LINES:
                yield Text(f"  … and {len(self.missing) - MISSING_LINES} more")


def render(rows: Sequence[ResultRow], missing: Sequence[str] = (), where: str | Path = "this study") -> TerminalReport:
    """The report on `rows`, for `rich.console.Console.print`.

    `missing` are lines on cells without a result; `where` names the study in errors. Raises `UserError` if there are no rows or
    they do not belong in one table (see `one_table`).
    """
    return TerminalReport(rows, missing, where)


def loss_tables(summary: Summary, width: int) -> Iterator[RenderableType]:
    """Designs × shapes with the lowest loss of each column marked, in as many tables as `width` asks for."""
    heads = headings(summary)
    columns = {shape: _column(summary, shape) for shape in summary.shapes}
    widths = {s: max(len(line) for line in [*heads[s].split("\n"), *map(str, columns[s])]) for s in summary.shapes}
    for i, shapes in enumerate(_chunks(widths, width - _label_width(summary))):
        if i > 0:
            yield Text()
        table = _table(summary)
        for shape in shapes:
            table.add_column(heads[shape], justify="right", no_wrap=True)
        for row, label in enumerate(summary.labels):
            table.add_row(Text(label), *(columns[shape][row] for shape in shapes))
        yield table


def trend_table(summary: Summary) -> Table:
    """Slope, gain, best shape and own parameters of every design."""
    table = _table(summary)
    for head in ("slope", "gain", "best shape", "bits/byte", "own params"):
        table.add_column(head, justify="right", no_wrap=True)
    for trend in summary.trends:
        table.add_row(Text(trend.label), *_trend_entries(trend))
    return table


def headings(summary: Summary) -> dict[Shape, str]:
    """For every shape, a line each: layers × width, aspect ratio, total parameters of its designs.

    Shapes with the same layers and width are told apart by the sizes in which they differ.
    """
    found = {}
    for shape in summary.shapes:
        twins = [other for other in summary.shapes if other.name == shape.name]
        sizes = [(item.name, {getattr(twin, item.name) for twin in twins}) for item in fields(Shape)]
        apart = [f"{name} {getattr(shape, name)}" for name, values in sizes if len(values) > 1]
        totals = [cell.total_parameters for cell in summary.cells if cell.shape == shape]
        found[shape] = "\n".join([shape.name, *apart, f"AR {ratio_text(shape.aspect_ratio)}", parameter_span(totals)])
    return found


def _column(summary: Summary, shape: Shape) -> list[Text]:
    cells = [summary.cell(label, shape) for label in summary.labels]
    losses = [cell.loss for cell in cells if cell and cell.loss is not None]
    lowest = min(losses) if len(losses) > 1 else None
    spread = any(cell and cell.loss_sd is not None for cell in cells)
    uneven = len({len(cell.seeds) for cell in summary.drawn}) > 1
    return [_entry(cell, lowest, spread, uneven) for cell in cells]


def _entry(cell: CellSummary | None, lowest: float | None, spread: bool, uneven: bool) -> Text:
    if cell is None:
        return Text("–", style="dim")
    if cell.loss is None:
        return Text(f"diverged {diverged(cell)}", style="red")
    text = f"{cell.loss:.4f}"
    if spread:
        text += f" ± {cell.loss_sd:.4f}" if cell.loss_sd is not None else " " * len(" ± 0.0000")
    if uneven:
        text += f" (n={len(cell.seeds)})"
    return Text(f"* {text}", style="bold green") if cell.loss == lowest else Text(text)


def _trend_entries(trend: Trend) -> list[str]:
    best = trend.best
    return [
        "–" if trend.slope is None else f"{trend.slope:+.4f}",
        "–" if trend.gain is None else f"{trend.gain:+.4f}",
        "–" if best is None else best.shape.name,
        "–" if best is None or best.bits_per_byte is None else f"{best.bits_per_byte:.4f}",
        percent_span(trend.own_share),
    ]


def _chunks(widths: Mapping[Shape, int], room: int) -> Iterator[list[Shape]]:
    """The shapes in runs that fit into `room` columns, at least one each."""
    chunk: list[Shape] = []
    left = room
    for shape, width in widths.items():
        if chunk and GAP + width > left:
            yield chunk
            chunk, left = [], room
        chunk.append(shape)
        left -= GAP + width
    yield chunk


def _label_width(summary: Summary) -> int:
    return min(LABEL_WIDTH, max(len(label) for label in ["design", *summary.labels]))


def _table(summary: Summary) -> Table:
    """An empty table whose columns stand `GAP` apart, with the designs as its first."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, GAP - 1), pad_edge=False, header_style="bold")
    table.add_column("design", width=_label_width(summary), overflow="fold")
    return table


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _small(text: str) -> Text:
    return Text(text, style="dim")
