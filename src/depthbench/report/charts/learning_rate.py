"""Loss against learning rate: a panel for every shape, to see whether the optimum lies inside what was tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.aspect_ratio import missing_text
from depthbench.report.charts.style import GREY, LOSS_TITLE, MARGIN, Scheme, clickable, figure, group_title, panel
from depthbench.report.content import Content, Section, searched
from depthbench.text import ratio_text
from depthbench.verdict.rows import Shape
from depthbench.verdict.summary import CellSummary

if TYPE_CHECKING:
    import altair as alt

NAME = "loss_vs_learning_rate"
WIDTH, HEIGHT = 270, 220  # of a panel, in pixels
COLUMNS = 3
BAND = 13  # pixels of each row of marks for diverged runs, above the losses
PADDING = 0.04  # of the losses' span, below and above them
FAR = 2.0  # times the span of the lower four fifths of the losses: what lies above would flatten all others
VERTEX = "M0,-1.6L0,1.6"  # a stroke across the curve
CROSS = "M-1,-1L1,1M1,-1L-1,1"
ARROW = "M-0.9,0.2L0,-1L0.9,0.2M0,-1L0,1.2"


def has_search(content: Content) -> bool:
    """Whether any cell had learning rates to choose from."""
    return any(searched(cell) for section in content.sections for cell in section.summary.cells)


def loss_vs_learning_rate(content: Content) -> alt.ConcatChart:
    """A line for every design through the mean losses at its learning rates; the panels of one table share their axes.

    The chosen rate has the design's marker, hollow if it is on an edge of those tried; a stroke marks the lowest point of the
    parabola through it and its neighbours. Rates with a diverged run are crosses in a band above the loss axis, never values. An
    arrow stands for a loss far above all others.
    """
    import altair as alt

    sections = [section for section in content.sections if any(searched(cell) for cell in section.summary.cells)]
    scheme = Scheme(content.labels, [cell.label for section in sections for cell in section.summary.cells])
    grids = [_panels(section, scheme) for section in sections]
    grids[0][0] = clickable(grids[0][0])
    columns = min(COLUMNS, max(len(grid) for grid in grids))
    titles = [group_title(section.table.title if len(sections) > 1 else "") for section in sections]
    rows = [
        alt.ConcatChart(concat=grid, columns=columns, title=title, spacing=16) for grid, title in zip(grids, titles, strict=True)
    ]
    width = columns * (WIDTH + 20) + 140
    return figure(rows, 1, "Loss against learning rate", content.title, [*_caption(sections), missing_text(content)], width)


def _panels(section: Section, scheme: Scheme) -> list[alt.LayerChart]:
    """A panel for every shape of a table; axis titles stand on the left and at the bottom only."""
    summary = section.summary
    shapes = [shape for shape in summary.shapes if any(cell.shape == shape for cell in summary.cells)]
    columns = min(COLUMNS, len(shapes))
    marks = {shape: _diverged([cell for cell in summary.cells if cell.shape == shape]) for shape in shapes}
    band = BAND * max((mark["row"] + 1 for found in marks.values() for mark in found), default=0)
    axes = _Axes(summary.cells, band)
    return [
        _panel(
            [cell for cell in summary.cells if cell.shape == shape],
            marks[shape],
            scheme,
            axes,
            title=_shape_text(shape),
            left=at % columns == 0,
            bottom=at + columns >= len(shapes),
        )
        for at, shape in enumerate(shapes)
    ]


def _shape_text(shape: Shape) -> str:
    d_ff = f" · d_ff {shape.d_ff}" if shape.d_ff else ""
    return f"{shape.name} · aspect ratio {ratio_text(shape.aspect_ratio)}{d_ff}"


class _Axes:
    """The axes that the panels of one table share. Losses begin below the band of the diverged runs."""

    def __init__(self, cells: Iterable[CellSummary], band: int):
        tried = [item for cell in cells for item in cell.choice.tried]
        losses = [item.loss for item in tried if item.loss is not None]
        self.rates = sorted({item.rate for item in tried})
        low, high = _limits(losses) if losses else (0.0, 1.0)
        self.top = high
        self.known = bool(losses)
        self.domain = [low - PADDING * (high - low), high + PADDING * (high - low)]
        self.band = band

    def x(self, titled: bool) -> alt.X:
        import altair as alt

        axis = alt.Axis(values=self.rates, format="~g", labelOverlap="greedy", labelAngle=0, grid=False)
        domain = [self.rates[0] / MARGIN, self.rates[-1] * MARGIN]
        return alt.X("rate:Q", axis=axis).scale(type="log", domain=domain, nice=False).title("learning rate" if titled else None)

    def y(self, titled: bool) -> alt.Y:
        import altair as alt

        shown = titled and self.known  # without a loss the numbers would be made up
        axis = alt.Axis(tickCount=6, labels=shown, ticks=shown, grid=self.known)
        scale = alt.Scale(domain=self.domain, nice=False, zero=False, range=[HEIGHT, self.band + 6 if self.band else 0])
        return alt.Y("loss:Q", axis=axis, scale=scale).title(LOSS_TITLE if titled else None)


def _limits(losses: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest loss that is drawn in its place."""
    low, high = min(losses), max(losses)
    most = sorted(losses)[(4 * len(losses) - 1) // 5]
    found = min(high, low + FAR * (most - low))
    return low, found if found > low else low + 0.01


def _panel(
    cells: Sequence[CellSummary], marks: list[dict[str, Any]], scheme: Scheme, axes: _Axes, *, title: str, left: bool, bottom: bool
) -> alt.LayerChart:
    import altair as alt

    y = axes.y(left)
    base = alt.Chart({"values": _points(cells, axes.top)}).encode(x=axes.x(bottom), color=scheme.colour(), opacity=scheme.opacity())
    tried = base.transform_filter("datum.kind != 'refined'")
    lines = tried.mark_line(strokeWidth=1.4).encode(y=y, strokeDash=scheme.dash())
    dots = tried.transform_filter("datum.kind == 'tried'").mark_point(filled=True, size=14).encode(y=y, tooltip=_tooltips())
    chosen = base.encode(y=y, shape=scheme.marker(), tooltip=_tooltips())
    inside = chosen.transform_filter("datum.kind == 'chosen'").mark_point(filled=True, size=70, stroke="white", strokeWidth=0.5)
    edge = chosen.transform_filter("datum.kind == 'edge'").mark_point(fill="white", size=55, strokeWidth=1.6)
    refined = base.transform_filter("datum.kind == 'refined'").mark_point(shape=VERTEX, size=60, strokeWidth=1.4)
    far = base.transform_filter("datum.kind == 'far'").mark_point(shape=ARROW, size=70, strokeWidth=1.4)
    layers = [lines, dots, inside, edge, *(mark.encode(y=y, tooltip=_tooltips()) for mark in (refined, far))]
    if axes.band:
        layers += _band(marks, scheme, axes, bottom, labelled=left)
    return panel(layers, WIDTH, HEIGHT, title)


def _band(marks: list[dict[str, Any]], scheme: Scheme, axes: _Axes, bottom: bool, labelled: bool) -> list[Any]:
    """Crosses above the loss axis, a row for every design that diverged at the same rate, and the line that parts them from it."""
    import altair as alt

    limit = alt.Chart({"values": [{}]}).mark_rule(color=GREY, strokeDash=[2, 2], strokeWidth=0.8).encode(y=alt.value(axes.band + 3))
    found: list[Any] = [limit]
    for row in range(axes.band // BAND):
        crosses = alt.Chart({"values": [mark for mark in marks if mark["row"] == row]})
        rate = alt.Tooltip("rate:Q", title="learning rate")
        crosses = crosses.mark_point(shape=CROSS, size=45, strokeWidth=1.5)
        found.append(
            crosses.encode(
                x=axes.x(bottom),
                y=alt.value(BAND * row + BAND / 2),
                color=scheme.colour(),
                opacity=scheme.opacity(),
                tooltip=[alt.Tooltip("design:N"), rate, alt.Tooltip("text:N", title="diverged")],
            )
        )
    if labelled:
        found.append(
            alt.Chart({"values": [{}]})
            .mark_text(text="diverged", align="right", baseline="middle", fontSize=11, color=GREY)
            .encode(x=alt.value(-6), y=alt.value(axes.band / 2))
        )
    return found


def _points(cells: Sequence[CellSummary], top: float) -> list[dict[str, Any]]:
    """Every rate with a loss, the refined optimum, and a gap at every rate with a diverged run, so that no line runs over it.

    A loss above `top` is drawn at it.
    """
    found = []
    for cell in cells:
        for item in cell.choice.tried:
            kind = "tried" if item.rate != cell.choice.chosen else "edge" if cell.choice.edge else "chosen"
            far = item.loss is not None and item.loss > top
            found.append(_point(cell, item.rate, item.loss, "far" if far else kind, str(item.n_seeds), top))
        if cell.choice.refined is not None:
            found.append(_point(cell, cell.choice.refined, cell.choice.refined_loss, "refined", "no run, an estimate", top))
    return found


def _point(cell: CellSummary, rate: float, loss: float | None, kind: str, seeds: str, top: float) -> dict[str, Any]:
    drawn = None if loss is None else min(loss, top)
    return {
        "design": cell.label,
        "shape": cell.shape.name,
        "rate": rate,
        "loss": drawn,
        "measured": loss,
        "kind": kind,
        "seeds": seeds,
    }


def _diverged(cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """A mark for every design and rate of a shape at which a run diverged, in rows, so that none hides another."""
    found: list[dict[str, Any]] = []
    rows: dict[float, int] = {}
    for cell in cells:
        for item in cell.choice.tried:
            if item.loss is None:
                row = rows.setdefault(item.rate, 0)
                rows[item.rate] += 1
                found.append({"design": cell.label, "rate": item.rate, "row": row, "text": f"one or more of {item.n_seeds} seeds"})
    return found


def _tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("shape:N", title="layers × width"),
        alt.Tooltip("rate:Q", title="learning rate", format=".3~g"),
        alt.Tooltip("measured:Q", title="loss (nats per token)", format=".4f"),
        alt.Tooltip("kind:N", title="this rate"),
        alt.Tooltip("seeds:N"),
    ]


def _caption(sections: Sequence[Section]) -> list[str]:
    cells = [cell for section in sections for cell in section.summary.cells]
    drawn = [cell for cell in cells if cell.loss is not None]
    edges = sum(bool(cell.choice.edge) for cell in drawn)
    single = all(item.n_seeds == 1 for cell in cells for item in cell.choice.tried)
    found = ["One seed per point." if single else "Mean over the seeds that all rates of a cell share."]
    if drawn:
        found.append("Large marker: the best rate tried.")
    if edges:
        found.append(f"Hollow ({edges} of {len(drawn)}): it is the highest or lowest tried, and a better one may lie beyond.")
    if any(cell.choice.refined is not None for cell in cells):
        found.append("Stroke: lowest point of a parabola, an estimate and no run.")
    if any(item.loss is None for cell in cells for item in cell.choice.tried):
        found.append("×: a run diverged at that rate, so it has no loss.")
    if any(_is_far(section) for section in sections):
        found.append("↑: a loss above the panel.")
    if len(sections) > 1:
        found.append("The panels of a table share their axes; tables do not.")
    return found


def _is_far(section: Section) -> bool:
    losses = [item.loss for cell in section.summary.cells for item in cell.choice.tried if item.loss is not None]
    return bool(losses) and max(losses) > _limits(losses)[1]
