"""Curves of a diagnosis: shares over thresholds, and the lens, pruning and affine replacements over depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.diagnosis_maps import rule_text
from depthbench.report.charts.style import GREY, Scheme, clickable, figure, panel
from depthbench.report.diagnoses import Diagnosed, scores_of

if TYPE_CHECKING:
    import altair as alt

WIDTH, HEIGHT = 330, 230
SYMLOG_CONSTANT = 0.01  # around zero a symlog axis is linear up to about this
SYMLOG_TICKS = [-10, -1, -0.1, -0.01, 0, 0.01, 0.1, 1, 10]
SCORES = ("causal", "permutation")
DOTS, DOTTED = [2, 3], "Dotted: the untrained model."
Values = list[dict[str, Any]]


def shares_chart(found: Diagnosed, scheme: Scheme, title: str) -> alt.ConcatChart | None:
    """The share of late pairs above every threshold."""
    panels, lines_at, apart = [], [], []
    for score in SCORES:
        lines: Values = []
        for label, measures in found.measures.items():
            for kind, value in scores_of(measures, score).items():
                if value["late"]["curve"]:
                    lines += _share_curve(label, kind, value["late"]["curve"])
        if not lines:
            continue
        thresholds = found.thresholds(score)
        several = len(set(thresholds.values())) > 1
        if several:
            each = ", ".join(f"{label} {at:g}" for label, at in thresholds.items())
            apart.append(f"The tables count {score} scores above different thresholds, so no line is drawn: {each}.")
        else:
            lines_at.append(f"{score} {next(iter(thresholds.values())):g}")
        panels.append(_share_panel(lines, scheme, score, None if several else next(iter(thresholds.values()))))
    if not panels:
        return None
    panels[0] = clickable(panels[0])
    caption = [
        f"{found.shape.name}: share of late pairs of blocks (both indices at least M/4) whose score exceeds the threshold.",
        "Bands: 95 % intervals over windows.",
        DOTTED,
        f"Vertical line: the threshold that the tables count from ({', '.join(lines_at)})." if lines_at else "",
        *apart,
        rule_text(found),
        *found.notes(*SCORES),
    ]
    return figure(panels, 2, "Late-layer shares", title, caption, 2 * WIDTH + 160)


def _share_curve(label: str, kind: str, curve: dict[str, Any]) -> Values:
    low, high = curve["low"] or curve["value"], curve["high"] or curve["value"]
    return [
        {"design": label, "kind": kind, "threshold": at, "share": value, "low": lowest, "high": highest}
        for at, value, lowest, highest in zip(curve["threshold"], curve["value"], low, high, strict=True)
    ]


def _share_panel(lines: Values, scheme: Scheme, score: str, threshold: float | None) -> Any:
    import altair as alt

    x = alt.X("threshold:Q", title=f"threshold of the {score} score").scale(nice=False)
    y = alt.Y("share:Q", title="share of late pairs above it").scale(domain=[0, 1])
    base = alt.Chart({"values": lines}).encode(x=x, color=scheme.colour(), opacity=scheme.opacity())
    tips = [alt.Tooltip("design:N"), alt.Tooltip("threshold:Q", format=".2f"), alt.Tooltip("share:Q", format=".2f")]
    trained = base.transform_filter("datum.kind == 'trained'")
    line = trained.mark_line(strokeWidth=1.8, interpolate="step-after").encode(y=y, tooltip=tips)
    band = trained.mark_area(fillOpacity=0.15, interpolate="step-after").encode(y=alt.Y("low:Q"), y2="high:Q")
    control = base.transform_filter("datum.kind != 'trained'")
    control = control.mark_line(strokeWidth=1.2, strokeDash=DOTS, interpolate="step-after").encode(y=y)
    rules = []
    if threshold is not None:
        rules = [alt.Chart({"values": [{}]}).mark_rule(color=GREY, strokeWidth=0.8).encode(x=alt.datum(threshold))]
    return panel([line, band, control, *rules], WIDTH, HEIGHT, f"{score} score")


@dataclass(frozen=True)
class Curve:
    """A panel over depth: `read` gives the curves of a design's measures by kind; `scale` is that of the y axis."""

    measure: str
    y_title: str
    x_title: str
    scale: str
    read: Callable[[dict[str, Any]], dict[str, Any]]


def _lens(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda measures: {"trained": measures["lens"][name]} if "lens" in measures else {}


def _pruned(measures: dict[str, Any]) -> dict[str, Any]:
    published: dict[str, Any] = next(iter(measures.get("pruning", {}).values()), {})
    return {kind: value["change"] for kind, value in published.items()}


def _useful(measures: dict[str, Any]) -> dict[str, Any]:
    return {"trained": measures["usefulness"]["ratio"]} if "usefulness" in measures else {}


STATES, BLOCKS = "depth state (0: embedding)", "block"
CURVES = (
    Curve("lens", "early-exit loss (nats)", STATES, "linear", _lens("loss")),
    Curve("lens", "KL(final ‖ early) (nats, symlog)", STATES, "symlog", _lens("divergence")),
    Curve("causal", "loss without the block − loss (nats, symlog)", BLOCKS, "symlog", _pruned),
    Curve("usefulness", "loss with an affine block / loss (log)", BLOCKS, "log", _useful),
)


def depth_chart(found: Diagnosed, scheme: Scheme, title: str) -> alt.ConcatChart | None:
    """The lens after every block, and what leaving out each block, or an affine map in its place, costs."""
    panels, caption, shown = [], [f"{found.shape.name}. Bands: 95 % intervals over windows."], []
    for curve in CURVES:
        values = [
            {"design": label, "kind": kind, "depth": at, "value": value, "low": low, "high": high}
            for label, measures in found.measures.items()
            for kind, points in curve.read(measures).items()
            for at, (value, low, high) in enumerate(
                zip(points["value"], points["low"] or points["value"], points["high"] or points["value"], strict=True)
            )
        ]
        if not values:
            continue
        marks: list[float] = []
        if curve.read is _useful:
            marks = sorted(
                {measures["usefulness"]["threshold"] for measures in found.measures.values() if "usefulness" in measures}
            )
            caption.append(f"Grey line at {' and '.join(f'{at:g}' for at in marks)}: a block above it is counted as useful.")
        elif any(value["kind"] != "trained" for value in values):
            caption.append(DOTTED)
        shown.append(curve.measure)
        panels.append(_depth_panel(values, scheme, curve, marks))
    if not panels:
        return None
    panels[0] = clickable(panels[0])
    if {"lens", "causal"} & set(shown):
        caption.append(f"A symlog axis is linear within ±{SYMLOG_CONSTANT:g}.")
    caption += [rule_text(found) if "causal" in shown else "", *found.notes(*shown)]
    return figure(panels, 2, "Depth by depth", title, caption, 2 * WIDTH + 160)


def _depth_panel(values: Values, scheme: Scheme, curve: Curve, marks: Sequence[float]) -> Any:
    import altair as alt

    axis, scale = alt.Axis(), alt.Scale(zero=False, nice=True)
    if curve.scale == "symlog":
        axis = alt.Axis(values=SYMLOG_TICKS, format="~g")
        scale = alt.Scale(zero=False, nice=False, type="symlog", constant=SYMLOG_CONSTANT)
    elif curve.scale == "log":
        ends = [min([value["low"] for value in values] + list(marks)), max([value["high"] for value in values] + list(marks))]
        scale = alt.Scale(zero=False, nice=False, type="log", domain=[ends[0] * 0.995, ends[1] * 1.005])
        axis = alt.Axis(format="~g", tickCount=6)
    y = alt.Y("value:Q", title=curve.y_title, axis=axis, scale=scale)
    last = max(value["depth"] for value in values)
    x = alt.X("depth:Q", title=curve.x_title, axis=alt.Axis(tickMinStep=1, format="d")).scale(domain=[0, last], nice=False)
    base = alt.Chart({"values": values}).encode(x=x, color=scheme.colour(), opacity=scheme.opacity())
    tips = [alt.Tooltip("design:N"), alt.Tooltip("depth:Q", title=curve.x_title), alt.Tooltip("value:Q", format=".4f")]
    trained = base.transform_filter("datum.kind == 'trained'")
    line = trained.mark_line(strokeWidth=1.6).encode(y=y)
    dots = trained.mark_point(filled=True, size=36, opacity=1).encode(y=y, shape=scheme.marker(), tooltip=tips)
    band = trained.mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q")
    control = base.transform_filter("datum.kind != 'trained'").mark_line(strokeWidth=1.2, strokeDash=DOTS).encode(y=y)
    rules = [alt.Chart({"values": [{}]}).mark_rule(color=GREY, strokeWidth=0.8).encode(y=alt.datum(at)) for at in marks]
    return panel([line, dots, band, control, *rules], WIDTH, HEIGHT, "")
