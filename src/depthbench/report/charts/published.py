"""Beside the published study: depth gains against depth gains, and losses against losses. Published values are never drawn as ours.

Where a table has the published sizes (layers × width and vocabulary), every design has a panel with its losses here over the
published ones. At any other size losses cannot be laid over each other, and the published ones have a panel of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.aspect_ratio import loss_panel, missing_text, seeds_text
from depthbench.report.charts.style import (
    GREY,
    LABEL_LIMIT,
    LOSS_TITLE,
    Scheme,
    clickable,
    figure,
    group_title,
    panel,
    ratio_axis,
)
from depthbench.report.content import Content, Section
from depthbench.text import interval_text, parameter_count
from depthbench.verdict.published import DEEPEST, LOSSES, QUANTITY, SHAPES, SOURCE, VOCABULARY, published_points
from depthbench.verdict.summary import CellSummary
from depthbench.verdict.verdicts import DesignVerdict

if TYPE_CHECKING:
    import altair as alt

GAINS_NAME = "depth_gain_vs_published"
OVERLAY_NAME = "loss_vs_published"
BESIDE_NAME = "published_400m"
FEWEST_GAINS = 2  # points of a scatter
SQUARE = 320  # pixels of a panel of gains
SMALL_WIDTH, SMALL_HEIGHT = 220, 160  # of a panel of one design
PANEL_WIDTH = 400
HERE, PUBLISHED = "this study", "as published"
SHADE = "#F4F4F4"  # behind published values
PADDING = 0.08


def published_charts(content: Content) -> dict[str, alt.ConcatChart]:
    """The charts that set a report beside the published study, by name; none without a design that both have."""
    found = {}
    scattered = [section for section in content.sections if section.agreement and len(section.agreement.designs) >= FEWEST_GAINS]
    if scattered:
        found[GAINS_NAME] = depth_gain_vs_published(content, scattered)
    alike = [section for section in content.sections if _same_sizes(section)]
    beside = [section for section in content.sections if section.agreement and section not in alike]
    if alike:
        found[OVERLAY_NAME] = loss_vs_published(content, alike)
    elif beside:
        found[BESIDE_NAME] = published_400m(content, beside)
    return found


def _same_sizes(section: Section) -> list[CellSummary]:
    """The cells with a loss that the published study has too, with the same layers, width and vocabulary."""
    sizes = {(point.design, point.n_layers, point.d_model) for point in published_points()}
    return [
        cell
        for cell in section.summary.drawn
        if (cell.label, cell.shape.n_layers, cell.shape.d_model) in sizes and cell.shape.vocab_size == VOCABULARY
    ]


def depth_gain_vs_published(content: Content, sections: Sequence[Section]) -> alt.ConcatChart:
    """Our depth gains against the published ones, a panel a table. Axes have scales of their own, so no diagonal is drawn."""
    labels = [design.label for section in sections if section.agreement for design in section.agreement.designs]
    scheme = Scheme(content.labels, labels)
    several = len(content.sections) > 1
    panels = [_gain_panel(section, scheme, section.table.title if several else "") for section in sections]
    panels[0] = clickable(panels[0])
    columns = min(2, len(panels))
    caption = [*_gain_caption(sections), missing_text(content)]
    return figure(panels, columns, "Depth gain against the published study", content.title, caption, columns * SQUARE + 220)


def _gain_panel(section: Section, scheme: Scheme, title: str) -> alt.LayerChart:
    import altair as alt

    assert section.agreement is not None
    gains = {design.label: design for design in section.verdicts.designs}
    points = [_gain_point(gains[design.label], design.published_gain) for design in section.agreement.designs]
    x_title = f"published gain (nats per token), M = {SHAPES[0][0]} to {SHAPES[DEEPEST][0]}"
    shapes = section.summary.compared
    y_title = f"gain here (nats per token), M = {shapes[0].n_layers} to {shapes[-1].n_layers}"
    x_axis = alt.Axis(tickCount=5, format=".2f", labelOverlap="greedy", labelSeparation=6, labelFlush=False)
    x = alt.X("published:Q", title=x_title, axis=x_axis).scale(zero=True, padding=14)
    zero = alt.Chart({"values": [{}]}).mark_rule(color="#999", strokeWidth=1)
    base = alt.Chart({"values": points}).encode(
        x=x,
        color=scheme.colour(),
        opacity=scheme.opacity(),
    )
    y = alt.Y("gain:Q", title=y_title).scale(zero=True, padding=14).axis(tickCount=6)
    dots = base.encode(y=y, shape=scheme.marker(), tooltip=_gain_tooltips())
    certain = "isValid(datum.low)"
    layers = [
        base.transform_filter(certain).mark_rule(strokeWidth=1.4).encode(y=alt.Y("low:Q", title=y_title), y2="high:Q"),
        dots.transform_filter(certain).mark_point(filled=True, size=80, stroke="white", strokeWidth=0.5),
        dots.transform_filter(f"!{certain}").mark_point(fill="white", size=60, strokeWidth=1.6),
        zero.encode(x=alt.datum(0)),
        zero.encode(y=alt.datum(0)),
    ]
    return panel(layers, SQUARE, SQUARE, title)


def _gain_point(design: DesignVerdict, published: float) -> dict[str, Any]:
    assert design.gain is not None
    return {
        "design": design.label,
        "published": published,
        "gain": design.gain.value,
        "low": design.gain.low,
        "high": design.gain.high,
        "interval": interval_text(design.gain.low, design.gain.high) or "none",
        "n": design.n,
    }


def _gain_tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("gain:Q", title="depth gain here", format="+.4f"),
        alt.Tooltip("interval:N", title="95 % interval"),
        alt.Tooltip("n:Q", title="paired seeds"),
        alt.Tooltip("published:Q", title="depth gain as published", format="+.3f"),
    ]


def _gain_caption(sections: Sequence[Section]) -> Iterable[str]:
    several = len(sections) > 1
    for number, section in enumerate(sections, 1):
        if section.agreement:
            yield (f"Panel {number}: " if several else "") + section.agreement.sentence
    if any(section.most_seeds > 1 for section in sections):
        yield "Bars: 95 % intervals, unadjusted; published values have none."
    yield "The two axes have scales of their own."
    yield f"Published: {SOURCE}."


def loss_vs_published(content: Content, sections: Sequence[Section]) -> alt.ConcatChart:
    """Small panels, one a design, with the losses here over the published ones at the same sizes."""
    import altair as alt

    columns = _small_columns(max(len(_designs(section)) for section in sections))
    grids = [_overlays(section, columns) for section in sections]
    several = len(sections) > 1
    rows = [
        alt.ConcatChart(concat=grid, columns=columns, spacing=18, title=group_title(section.table.title if several else ""))
        for section, grid in zip(sections, grids, strict=True)
    ]
    caption = [*_overlay_caption(sections), missing_text(content)]
    width = columns * (SMALL_WIDTH + 30) + 170
    return figure(rows, 1, "Loss beside the published study", content.title, caption, width)


def _small_columns(count: int) -> int:
    return 4 if count > 6 else min(3, count)


def _designs(section: Section) -> list[str]:
    """The designs with a cell of a published size."""
    found = {cell.label for cell in _same_sizes(section)}
    return [label for label in section.summary.labels if label in found]


def _overlays(section: Section, columns: int) -> list[alt.LayerChart]:
    labels = _designs(section)
    ours = {label: [cell for cell in section.summary.drawn if cell.label == label] for label in labels}
    values = [value for label in labels for value in _overlay_values(label, ours[label])]
    ends = [value[key] for value in values for key in ("loss", "low", "high") if value[key] is not None]
    room = PADDING * max(max(ends) - min(ends), 0.01)
    domain = [min(ends) - room, max(ends) + room]
    ratios = sorted({(value["aspect_ratio"], value["n_layers"]) for value in values})
    return [
        _overlay(
            [value for value in values if value["design"] == label],
            label,
            domain,
            ratios,
            left=at % columns == 0,
            bottom=at + columns >= len(labels),
        )
        for at, label in enumerate(labels)
    ]


def _overlay_values(label: str, cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    found = [_overlay_value(cell) for cell in cells]
    for point in published_points():
        if point.design == label:
            shape = f"{point.n_layers} × {point.d_model}"
            size = {"n_layers": point.n_layers, "shape": shape, "aspect_ratio": point.aspect_ratio}
            value = {"design": label, "source": PUBLISHED, **size, "loss": point.loss}
            found.append(value | {"low": None, "high": None, "spread": "not published"})
    return found


def _overlay_value(cell: CellSummary) -> dict[str, Any]:
    assert cell.loss is not None
    spread = cell.loss_sd
    return {
        "design": cell.label,
        "source": HERE,
        "n_layers": cell.shape.n_layers,
        "shape": cell.shape.name,
        "aspect_ratio": cell.shape.aspect_ratio,
        "loss": cell.loss,
        "low": None if spread is None else cell.loss - spread,
        "high": None if spread is None else cell.loss + spread,
        "spread": "one seed" if spread is None else f"{spread:.4f}",
    }


def _overlay(
    values: list[dict[str, Any]], label: str, domain: list[float], ratios: list[tuple[float, int]], *, left: bool, bottom: bool
) -> alt.LayerChart:
    import altair as alt

    legend = alt.Legend(title=None, symbolType="stroke", symbolSize=300, symbolStrokeWidth=1.5, labelLimit=LABEL_LIMIT)
    sources = [HERE, PUBLISHED]
    colour = alt.Color("source:N", legend=None).scale(domain=sources, range=["#0072B2", GREY])
    x = ratio_axis(ratios, SMALL_WIDTH)
    base = alt.Chart({"values": values}).encode(
        x=x if bottom else x.title(None),
        color=colour,
    )
    y = alt.Y("loss:Q").scale(domain=domain, zero=False, nice=False).title(LOSS_TITLE if left else None)
    y = y.axis(tickCount=5, labels=left, ticks=left)
    dash = alt.StrokeDash("source:N", legend=legend).scale(domain=sources, range=[[1, 0], [4, 3]])
    points = base.encode(y=y, tooltip=_overlay_tooltips())
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.4)
    layers = [
        base.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=dash, color=colour.legend(legend)),
        bars.encode(y=alt.Y("low:Q").title(LOSS_TITLE if left else None), y2="high:Q"),
        points.transform_filter(f"datum.source == '{HERE}'").mark_point(shape="circle", filled=True, size=50, opacity=1),
        points.transform_filter(f"datum.source == '{PUBLISHED}'").mark_point(
            shape="square", fill="white", size=35, strokeWidth=1.3, opacity=1
        ),
    ]
    return panel(layers, SMALL_WIDTH, SMALL_HEIGHT, label)


def _overlay_tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("source:N"),
        alt.Tooltip("shape:N", title="layers × width"),
        alt.Tooltip("loss:Q", title="loss (nats per token)", format=".4~f"),
        alt.Tooltip("spread:N", title="± sd over seeds"),
    ]


def _overlay_caption(sections: Sequence[Section]) -> Iterable[str]:
    yield "Designs at the sizes that the published study has too; the panels share their axes."
    yield seeds_text([section.summary for section in sections])
    yield _ours(sections)
    yield f"Published: {QUANTITY}; {SOURCE}; no spread was published."
    yield "Levels can be compared only if the data are the same, which is not checked."


def _ours(sections: Sequence[Section]) -> str:
    tokens = sorted({max(cell.tokens for cell in section.summary.cells) for section in sections})
    return f"Here: {', '.join(map(parameter_count, tokens))} training tokens."


def published_400m(content: Content, sections: Sequence[Section]) -> alt.ConcatChart:
    """Our losses, a panel a table, beside the published ones in a shaded panel of their own."""
    common = {design.label for section in sections if section.agreement for design in section.agreement.designs}
    labels = [cell.label for section in sections for cell in section.summary.drawn]
    scheme = Scheme([*dict.fromkeys([*content.labels, *LOSSES])], [*labels, *common])
    panels = [loss_panel(section, scheme, PANEL_WIDTH, f"{HERE}: {section.table.title}") for section in sections]
    panels[0] = clickable(panels[0])
    panels.append(_published_panel(common, scheme))
    caption = [
        "Left to right: tables of this study, then the designs in common as published, each with axes of its own.",
        seeds_text([section.summary for section in sections]),
        f"Published: {QUANTITY}; {SOURCE}; no spread was published.",
        "At another budget and on other data losses cannot be compared, only what depth does to each design.",
        missing_text(content),
    ]
    return figure(panels, 2, "Loss here and as published", content.title, caption, 2 * PANEL_WIDTH + 120)


def _published_panel(labels: Iterable[str], scheme: Scheme) -> alt.LayerChart:
    import altair as alt

    shown = set(labels)
    points = [
        {
            "design": point.design,
            "aspect_ratio": point.aspect_ratio,
            "shape": f"{point.n_layers} × {point.d_model}",
            "loss": point.loss,
        }
        for point in published_points()
        if point.design in shown
    ]
    shapes = [(point.aspect_ratio, point.n_layers) for point in published_points() if point.design in shown]
    base = alt.Chart({"values": points}).encode(
        x=ratio_axis(shapes, PANEL_WIDTH),
        y=alt.Y("loss:Q").scale(zero=False, nice=False, padding=14).title(f"published {LOSS_TITLE}"),
        color=scheme.colour(),
        opacity=scheme.opacity(),
    )
    tooltips = [alt.Tooltip("design:N"), alt.Tooltip("shape:N", title="layers × width")]
    marks = base.mark_point(fill=SHADE, size=55, strokeWidth=1.4)
    layers = [
        base.mark_line(strokeWidth=1.4).encode(strokeDash=scheme.dash()),
        marks.encode(shape=scheme.marker(), tooltip=[*tooltips, alt.Tooltip("loss:Q", title="as published", format=".3f")]),
    ]
    title = f"{PUBLISHED}: about 400M total parameters, 8B tokens"
    return panel(layers, PANEL_WIDTH, round(PANEL_WIDTH * 2 / 3), title, view={"fill": SHADE})
