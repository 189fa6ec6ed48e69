"""Loss against aspect ratio: one chart specification, saved as interactive HTML, PNG and PDF.

Altair and vl-convert take most of a second to import, so they are imported where they are used.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthbench import files
from depthbench.report.embed import html_page
from depthbench.report.looks import SOLID, looks
from depthbench.report.notes import diverged_note
from depthbench.text import parameter_count, parameter_span, plain, ratio_text
from depthbench.verdict.rows import Shape
from depthbench.verdict.summary import CellSummary, Summary

if TYPE_CHECKING:
    import altair as alt

NAME = "loss_vs_aspect_ratio"
WIDTH, HEIGHT = 480, 320  # of the plotting area, in pixels
SHARPNESS = 3  # pixels of the PNG for each of these
DASHED_FROM = 5  # with fewer designs, markers tell solid lines apart
X_MARGIN = 1.15
FADED = 0.06
LINE_LENGTH = 100
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
X_TITLE = "deeper, narrower  ←  aspect ratio d_model / n_layers  →  shallower, wider"
Y_TITLE = "validation loss (nats per token)"
_TEXT = {"labelFont": FONT, "titleFont": FONT, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
_BLACK = {"labelColor": "black", "titleColor": "black"}
CONFIG: dict[str, Any] = {
    "background": "white",
    "font": FONT,
    "padding": 10,
    "axis": {**_TEXT, **_BLACK, "gridColor": "#E4E4E4", "domainColor": "black", "tickColor": "black"},
    "legend": {**_TEXT, **_BLACK},
    "title": {
        "anchor": "start",
        "fontSize": 14,
        "offset": 12,
        "subtitleFontSize": 11,
        "subtitleColor": "#444",
        "subtitlePadding": 4,
    },
    "view": {"stroke": None},
}


def loss_chart(summary: Summary, missing: Sequence[str] = (), title: str = "") -> alt.LayerChart:
    """Mean loss of every design and shape against aspect ratio, with bars of ± one standard deviation where there are seeds.

    Cells without a loss are not drawn; the subtitle names them and counts the `missing` runs. The loss axis does not start at zero.
    """
    import altair as alt

    labels = list(dict.fromkeys(cell.label for cell in summary.drawn))
    style = looks(summary.labels)
    dashes = [style[label].dash if len(labels) >= DASHED_FROM else SOLID for label in labels]
    legend = alt.Legend(title="design", symbolSize=80, symbolStrokeWidth=0, symbolOpacity=1, labelLimit=240)
    clicked = alt.selection_point(name="clicked", fields=["design"], bind="legend")
    base = alt.Chart({"values": _points(summary)}).encode(
        x=_x_axis(summary.shapes),
        color=alt.Color("design:N", legend=legend).scale(domain=labels, range=[style[label].colour for label in labels]),
        opacity=alt.when(clicked).then(alt.value(1)).otherwise(alt.value(FADED)),
    )
    y = alt.Y("loss:Q").scale(zero=False, padding=12).title(Y_TITLE)
    dash = alt.StrokeDash("design:N", legend=legend).scale(domain=labels, range=dashes)
    marker = alt.Shape("design:N", legend=legend).scale(domain=labels, range=[style[label].marker for label in labels])
    lines = base.mark_line(strokeWidth=1.6).encode(y=y, strokeDash=dash)
    points = base.mark_point(filled=True, size=75, stroke="white", strokeWidth=0.5).encode(y=y, shape=marker, tooltip=_tooltips())
    bars = base.transform_filter("isValid(datum.low)").encode(y=alt.Y("low:Q").title(Y_TITLE), y2="high:Q")
    bars = bars.mark_errorbar(ticks={"size": 7, "thickness": 1.2}, thickness=1.2)
    heading = alt.Title(plain(title) or "Loss against aspect ratio", subtitle=_caption(summary, missing))
    layers = [lines, points.add_params(clicked)]
    if any(cell.loss_sd is not None for cell in summary.drawn):
        layers.insert(0, bars)
    return alt.LayerChart(layer=layers, width=WIDTH, height=HEIGHT, title=heading, config=CONFIG)


def save(chart: alt.LayerChart, folder: Path) -> list[Path]:
    """Write the chart to `folder` as self-contained HTML, PNG and PDF, each atomically, and give the paths."""
    import altair as alt
    import vl_convert

    spec = chart.to_dict()
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    html_path, png_path, pdf_path = (folder / f"{NAME}.{kind}" for kind in ("html", "png", "pdf"))
    library = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub lacks the default
    files.write_text(html_path, html_page(spec, library))
    files.write_bytes(png_path, vl_convert.vegalite_to_png(spec, vl_version=version, scale=SHARPNESS))
    files.write_bytes(pdf_path, vl_convert.vegalite_to_pdf(spec, vl_version=version))
    return [html_path, png_path, pdf_path]


def _x_axis(shapes: Sequence[Shape]) -> alt.X:
    """Logarithmic, with a tick at every aspect ratio that says how many layers it has."""
    import altair as alt

    layers: dict[float, set[int]] = {}
    for shape in shapes:
        layers.setdefault(shape.aspect_ratio, set()).add(shape.n_layers)
    ticks = sorted(layers)
    labels = [[ratio_text(ratio), ", ".join(map(str, sorted(layers[ratio]))) + "L"] for ratio in ticks]
    axis = alt.Axis(
        values=ticks,
        labelExpr=f"{json.dumps(labels)}[indexof({json.dumps(ticks)}, datum.value)]",
        labelOverlap="greedy",
        titlePadding=10,
    )
    domain = [ticks[0] / X_MARGIN, ticks[-1] * X_MARGIN]
    return alt.X("aspect_ratio:Q", axis=axis).scale(type="log", domain=domain, nice=False).title(X_TITLE)


def _points(summary: Summary) -> list[dict[str, Any]]:
    """Every cell with a loss, and a gap where a design has none at an aspect ratio, so that no line runs over it."""
    found = [_point(cell, cell.loss) for cell in summary.cells if cell.loss is not None]
    ratios = {shape.aspect_ratio for shape in summary.shapes}
    for label in summary.labels:
        has = {cell.shape.aspect_ratio for cell in summary.drawn if cell.label == label}
        found += [{"design": label, "aspect_ratio": ratio, "loss": None} for ratio in sorted(ratios - has) if has]
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
        alt.Tooltip("seeds:N"),
        alt.Tooltip("tokens_per_second:Q", title="training tokens per second", format=",.0f"),
    ]


def _caption(summary: Summary, missing: Sequence[str]) -> list[str]:
    totals = [cell.total_parameters for cell in summary.cells]
    found = [f"{parameter_span(totals)} total parameters; L: layers.", _seeds(summary)]
    if any(len(cell.learning_rates) > 1 for cell in summary.cells):
        found.append("Each point at the best of its learning rates.")
    found.append(diverged_note(summary))
    n_runs = sum(cell.n_runs for cell in summary.cells)
    found.append(f"Missing: {len(missing)} of {n_runs + len(missing)} runs." if missing else "")
    text = " ".join(note for note in found if note).replace(" × ", "\u00a0×\u00a0")
    return textwrap.wrap(text, LINE_LENGTH)


def _seeds(summary: Summary) -> str:
    counts = [len(cell.seeds) for cell in summary.drawn]
    if not counts:
        return "No run has a loss."
    if max(counts) == 1:
        return "One seed per point, so no error bars."
    span = f"{max(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"Mean over {span} seeds, bars ± 1 sample standard deviation."
