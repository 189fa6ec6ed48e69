"""Loss against aspect ratio: a panel for every table, so that no line joins runs of different budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.style import LOSS_TITLE, Scheme, clickable, figure, of_shapes, panel, ratio_axis
from depthbench.report.content import Content, Section, searched
from depthbench.report.notes import diverged_note, edge_text
from depthbench.text import parameter_count, parameter_span
from depthbench.verdict.summary import CellSummary, Summary

if TYPE_CHECKING:
    import altair as alt

NAME = "loss_vs_aspect_ratio"


def has_loss(content: Content) -> bool:
    """Whether any run has a loss."""
    return any(section.summary.drawn for section in content.sections)


def loss_vs_aspect_ratio(content: Content) -> alt.ConcatChart:
    """Mean loss of every design and shape, with bars of ± one standard deviation where there are seeds.

    Cells without a loss are not drawn; the caption names them and counts the missing runs. Loss axes do not start at zero, and
    every panel has its own.
    """
    several = len(content.sections) > 1
    width = 400 if several else 480
    sections = [section for section in content.sections if section.summary.drawn]
    scheme = Scheme(content.labels, [cell.label for section in sections for cell in section.summary.drawn])
    panels = [loss_panel(section, scheme, width, section.table.title if several else "") for section in sections]
    panels[0] = clickable(panels[0])
    columns = min(2, len(panels))
    return figure(panels, columns, "Loss against aspect ratio", content.title, _caption(content), columns * width + 120)


def loss_panel(section: Section, scheme: Scheme, width: int, title: str) -> alt.LayerChart:
    """The losses of one table. Hollow markers have their best learning rate on an edge."""
    import altair as alt

    summary = section.summary
    base = alt.Chart({"values": _points(summary)}).encode(
        x=ratio_axis(of_shapes(summary.shapes), width), color=scheme.colour(), opacity=scheme.opacity()
    )
    y = alt.Y("loss:Q").scale(zero=False, nice=False, padding=14).title(LOSS_TITLE)
    lines = base.mark_line(strokeWidth=1.6).encode(y=y, strokeDash=scheme.dash())
    points = base.encode(y=y, shape=scheme.marker(), tooltip=_tooltips())
    inside = points.transform_filter("datum.edge == ''").mark_point(filled=True, size=75, stroke="white", strokeWidth=0.5)
    layers = [lines, inside]
    if any(cell.loss_sd is not None for cell in summary.drawn):
        bars = base.transform_filter("isValid(datum.low)").encode(y=alt.Y("low:Q").title(LOSS_TITLE), y2="high:Q")
        layers.insert(1, bars.mark_errorbar(ticks={"size": 7, "thickness": 1.2}, thickness=1.2))
    if any(cell.choice.edge for cell in summary.drawn):
        layers.append(points.transform_filter("datum.edge != ''").mark_point(fill="white", size=55, strokeWidth=1.6))
    return panel(layers, width, round(width * 2 / 3), title)


def _points(summary: Summary) -> list[dict[str, Any]]:
    """Every cell with a loss, and a gap where a design has none at an aspect ratio, so that no line runs over it."""
    found = [_point(cell, cell.loss) for cell in summary.cells if cell.loss is not None]
    ratios = {shape.aspect_ratio for shape in summary.shapes}
    for label in summary.labels:
        has = {cell.shape.aspect_ratio for cell in summary.drawn if cell.label == label}
        found += [{"design": label, "aspect_ratio": ratio, "loss": None, "edge": ""} for ratio in sorted(ratios - has) if has]
    return found


def _point(cell: CellSummary, loss: float) -> dict[str, Any]:
    spread = cell.loss_sd
    return {
        "design": cell.label,
        "shape": cell.shape.name,
        "aspect_ratio": cell.shape.aspect_ratio,
        "loss": loss,
        "low": None if spread is None else loss - spread,
        "high": None if spread is None else loss + spread,
        "spread": "one seed" if spread is None else f"{spread:.4f}",
        "bits_per_byte": cell.bits_per_byte,
        "total": parameter_count(cell.total_parameters),
        "backbone": parameter_count(cell.backbone_parameters),
        "own": parameter_count(cell.design_parameters),
        "learning_rate": f"{cell.learning_rate:g}",
        "edge": edge_text(cell),
        "seeds": ", ".join(map(str, cell.seeds)),
        "tokens_per_second": cell.tokens_per_second,
    }


def _tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("shape:N", title="layers × width"),
        alt.Tooltip("aspect_ratio:Q", title="aspect ratio", format=".3~r"),
        alt.Tooltip("loss:Q", title="loss (nats per token)", format=".4f"),
        alt.Tooltip("spread:N", title="± sd over seeds"),
        alt.Tooltip("bits_per_byte:Q", title="bits per byte", format=".4f"),
        alt.Tooltip("total:N", title="parameters, total"),
        alt.Tooltip("backbone:N", title="parameters, backbone"),
        alt.Tooltip("own:N", title="of these the design's"),
        alt.Tooltip("learning_rate:N", title="learning rate"),
        alt.Tooltip("edge:N", title="on an edge of those tried"),
        alt.Tooltip("seeds:N"),
        alt.Tooltip("tokens_per_second:Q", title="training tokens per second", format=",.0f"),
    ]


def _caption(content: Content) -> list[str]:
    summaries = [section.summary for section in content.sections]
    cells = [cell for summary in summaries for cell in summary.cells]
    found = [f"{parameter_span([cell.total_parameters for cell in cells])} total parameters; L: layers.", seeds_text(summaries)]
    if any(searched(cell) for cell in cells):
        found.append("Each point at the best of its learning rates.")
    if any(cell.choice.edge for summary in summaries for cell in summary.drawn):
        found.append("Hollow: that rate is the highest or lowest tried, and a better one may lie beyond.")
    if len(content.sections) > 1:
        found.append("Every panel has its own loss axis.")
    found += [diverged_note(summary) for summary in summaries]
    return [*found, missing_text(content)]


def missing_text(content: Content) -> str:
    """How many runs a chart does not show yet."""
    count = len(content.missing)
    return f"Missing: {count} of {content.n_runs + count} runs." if count else ""


def seeds_text(summaries: Sequence[Summary]) -> str:
    """What the error bars are, if there are any."""
    counts = [len(cell.seeds) for summary in summaries for cell in summary.drawn]
    if not counts:
        return "No run has a loss."
    if max(counts) == 1:
        return "One seed per point, so no error bars."
    span = f"{max(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    bars = "bars ± 1 sample standard deviation" + (", none where there is one" if min(counts) == 1 else "")
    return f"Mean over {span} seeds, {bars}."
