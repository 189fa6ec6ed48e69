"""The losses of designs × shapes in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from rich.console import RenderableType
from rich.text import Text

from depthbench.report.columns import Column, wrapped
from depthbench.report.notes import diverged
from depthbench.text import parameter_span, ratio_text
from depthbench.verdict.rates import HIGH
from depthbench.verdict.rows import Shape
from depthbench.verdict.summary import CellSummary, Summary

INDENT = "  "  # where the lowest loss has its mark
ABOVE, BELOW = "^", "v"  # the best learning rate is the highest, the lowest tried


def loss_tables(summary: Summary, width: int) -> Iterator[RenderableType]:
    """A column a shape, with its lowest loss marked, in as many tables as `width` asks for."""
    heads = headings(summary)
    columns = [Column(heads[shape], _entries(summary, shape), "left") for shape in summary.shapes]
    yield from wrapped(Column("design", summary.labels), columns, width)


def headings(summary: Summary) -> dict[Shape, str]:
    """For every shape, a line each: layers × width, aspect ratio, total parameters of its designs, and `d_ff` where they differ.

    Shapes with the same layers and width are told apart by the sizes in which they differ.
    """
    found = {}
    for shape in summary.shapes:
        twins = [other for other in summary.shapes if other.name == shape.name]
        sizes = [(item.name, {getattr(twin, item.name) for twin in twins}) for item in fields(Shape)]
        apart = [f"{name} {getattr(shape, name)}" for name, values in sizes if len(values) > 1]
        totals = [cell.total_parameters for cell in summary.cells if cell.shape == shape]
        lines = [shape.name, *apart, f"AR {ratio_text(shape.aspect_ratio)}", parameter_span(totals)]
        narrow, wide = summary.d_ff_span(shape)
        lines += [] if narrow == wide else [f"d_ff {narrow}–{wide}"]
        found[shape] = "\n".join(f"{INDENT}{line}" for line in lines)
    return found


def _entries(summary: Summary, shape: Shape) -> list[Text]:
    cells = [summary.cell(label, shape) for label in summary.labels]
    losses = [cell.loss for cell in cells if cell and cell.loss is not None]
    lowest = min(losses) if len(losses) > 1 else None
    uneven = len({len(cell.seeds) for cell in summary.drawn}) > 1
    texts = [_loss(cell, uneven) if cell and cell.loss is not None else "" for cell in cells]
    longest = max(map(len, texts))
    return [_entry(cell, text.ljust(longest), lowest) for cell, text in zip(cells, texts, strict=True)]


def _loss(cell: CellSummary, uneven: bool) -> str:
    spread = f" ± {cell.loss_sd:.4f}" if cell.loss_sd is not None else ""
    return f"{cell.loss:.4f}{spread}" + (f" (n={len(cell.seeds)})" if uneven else "")


def _entry(cell: CellSummary | None, text: str, lowest: float | None) -> Text:
    """Losses stand below each other, between a place for the mark of the lowest and one for the flag of an edge."""
    if cell is None:
        return Text(f"{INDENT}–", style="dim")
    if cell.loss is None:
        return Text(f"{INDENT}diverged {diverged(cell)}", style="red")
    flagged = f"{text} {flag(cell)}".rstrip()
    return Text(f"* {flagged}", style="bold green") if cell.loss == lowest else Text(f"{INDENT}{flagged}")


def flag(cell: CellSummary) -> str:
    """`^` or `v` where the best learning rate is the highest or the lowest tried, so that the optimum may lie beyond."""
    if not cell.choice.edge or cell.loss is None:
        return ""
    return ABOVE if cell.choice.edge == HIGH else BELOW
