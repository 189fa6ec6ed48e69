"""Loss against parameters over the tiers of a ladder, with the fitted laws, and where the best aspect ratio lies at every tier."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depthbench.report.charts.aspect_ratio import missing_text
from depthbench.report.charts.style import LOSS_TITLE, Scheme, clickable, figure, panel
from depthbench.report.content import Content
from depthbench.text import parameter_count, ratio_text
from depthbench.verdict import power_law
from depthbench.verdict.aspect import FEW, AspectMove, TierBest
from depthbench.verdict.scaling import REACH, TIERS_TO_PREDICT, Ladder, ScalingLaw

if TYPE_CHECKING:
    import altair as alt

NAME = "loss_vs_parameters"
WIDTH, HEIGHT = 300, 230  # of a panel, in pixels
COLUMNS = 3
CURVE_POINTS = 40
PADDING = 0.06  # of the losses' span, below and above them
EDGE_MARGIN = 1.12  # of the logarithmic axes
TICKS_APART = 1.15
X_TITLE = "total parameters"
BEST_TITLE = "aspect ratio with the lowest loss"


def has_ladder(content: Content) -> bool:
    """Whether any design was trained at two budgets that belong together."""
    return content.ladder is not None and bool(content.ladder.laws or content.ladder.moves)


def loss_vs_parameters(content: Content) -> alt.ConcatChart:
    """A panel for every class of aspect ratios, then one with the best aspect ratio of every tier.

    A law is drawn from the smallest to the largest model that it was fitted to and no further. The panels of losses share their
    axes.
    """
    ladder = content.ladder
    assert ladder is not None
    scheme = Scheme(content.labels, [*(law.label for law in ladder.laws), *(move.label for move in ladder.moves)])
    ratios = sorted({law.aspect_ratio for law in ladder.laws}, reverse=True)
    sizes, domain = _sizes(ladder.laws, ladder.moves), _loss_domain(ladder.laws)
    ends = [min(sizes) / EDGE_MARGIN, max(sizes) * EDGE_MARGIN]
    panels: list[alt.LayerChart] = [
        _law_panel([law for law in ladder.laws if law.aspect_ratio == ratio], ratio, scheme, ends, domain) for ratio in ratios
    ]
    if ladder.moves:
        panels.append(_move_panel(ladder.moves, scheme, ends))
    panels[0] = clickable(panels[0])
    columns = 2 if len(panels) in (2, 4) else min(COLUMNS, len(panels))
    caption = [*_caption(ladder), missing_text(content)]
    return figure(panels, columns, "Loss against parameters", content.title, caption, columns * (WIDTH + 50) + 110)


def _sizes(laws: Sequence[ScalingLaw], moves: Sequence[AspectMove]) -> list[int]:
    """The parameters of every point, smallest first."""
    return sorted(
        [point.parameters for law in laws for point in law.points] + [tier.parameters for move in moves for tier in move.tiers]
    )


def _parameter_axis(sizes: Sequence[int], ends: list[float]) -> alt.X:
    """Total parameters, logarithmic, with a tick at the middle of every tier."""
    import altair as alt

    tiers: list[list[int]] = [[sizes[0]]]
    for small, large in itertools.pairwise(sizes):
        if large > TICKS_APART * small:
            tiers.append([])
        tiers[-1].append(large)
    ticks = [round(statistics.median(tier)) for tier in tiers]
    names = json.dumps([parameter_count(tick) for tick in ticks])
    axis = alt.Axis(
        values=ticks, labelExpr=f"{names}[indexof({json.dumps(ticks)}, datum.value)]", labelOverlap="greedy", labelAngle=0
    )
    return alt.X("parameters:Q", axis=axis).scale(type="log", domain=ends, nice=False).title(X_TITLE)


def _loss_domain(laws: Sequence[ScalingLaw]) -> list[float]:
    ends = [end for law in laws for point in _points(law) for end in (point["low"], point["high"], point["loss"])]
    known = [end for end in ends if end is not None]
    if not known:
        return [0.0, 1.0]
    low, high = min(known), max(known)
    span = max(high - low, 0.01)
    return [low - PADDING * span, high + PADDING * span]


def _law_panel(laws: Sequence[ScalingLaw], ratio: float, scheme: Scheme, ends: list[float], domain: list[float]) -> alt.LayerChart:
    import altair as alt

    x = _parameter_axis(_sizes(laws, ()), ends)
    y = alt.Y("loss:Q").scale(domain=domain, zero=False, nice=False).axis(tickCount=6).title(LOSS_TITLE)
    curves = alt.Chart({"values": [value for law in laws for value in _curve(law)]}).mark_line(strokeWidth=1.5)
    curves = curves.encode(x=x, y=y, color=scheme.colour(), strokeDash=scheme.dash(), opacity=scheme.opacity())
    base = alt.Chart({"values": [point for law in laws for point in _points(law)]})
    base = base.encode(x=x, color=scheme.colour(), opacity=scheme.opacity())
    layers: list[Any] = [curves]
    if any(law.n > 1 for law in laws):
        bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2)
        layers.append(bars.encode(y=alt.Y("low:Q").title(LOSS_TITLE), y2="high:Q"))
    dots = base.mark_point(filled=True, size=70, stroke="white", strokeWidth=0.5)
    layers.append(dots.encode(y=y, shape=scheme.marker(), tooltip=_law_tooltips()))
    return panel(layers, WIDTH, HEIGHT, f"aspect ratio {ratio_text(ratio)}")


def _points(law: ScalingLaw) -> list[dict[str, Any]]:
    """Mean and spread of every tier over the seeds that all tiers have."""
    found = []
    for point in law.points:
        loss = statistics.fmean(point.losses)
        spread = statistics.stdev(point.losses) if len(point.losses) > 1 else None
        found.append(
            {
                "design": law.label,
                "parameters": point.parameters,
                "count": parameter_count(point.parameters),
                "loss": loss,
                "low": None if spread is None else loss - spread,
                "high": None if spread is None else loss + spread,
                "spread": "one seed" if spread is None else f"{spread:.4f}",
                "alpha": law.alpha.value,
                "floor": None if law.E is None else law.E.value,
            }
        )
    return found


def _curve(law: ScalingLaw) -> list[dict[str, Any]]:
    """The law between the smallest and the largest model that it was fitted to."""
    sizes = [point.parameters for point in law.points]
    along = np.geomspace(min(sizes), max(sizes), CURVE_POINTS)
    numbers = np.array([law.E.value if law.E else 0.0, law.A.value, law.alpha.value])
    losses = power_law.evaluate(numbers, along / law.reference)
    return [{"design": law.label, "parameters": float(size), "loss": float(loss)} for size, loss in zip(along, losses, strict=True)]


def _law_tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("count:N", title="parameters, total"),
        alt.Tooltip("loss:Q", title="loss (nats per token)", format=".4f"),
        alt.Tooltip("spread:N", title="± sd over seeds"),
        alt.Tooltip("alpha:Q", title="alpha of the law", format=".3f"),
        alt.Tooltip("floor:Q", title="E of the law", format=".3f"),
    ]


def _move_panel(moves: Sequence[AspectMove], scheme: Scheme, ends: list[float]) -> alt.LayerChart:
    import altair as alt

    x = _parameter_axis(_sizes((), moves), ends)
    points = [_best(move.label, tier) for move in moves for tier in move.tiers]
    ratios = [point["aspect_ratio"] for point in points]
    y = alt.Y("aspect_ratio:Q").title(BEST_TITLE).axis(tickCount=5, format="~r")
    y = y.scale(type="log", domain=[min(ratios) / EDGE_MARGIN, max(ratios) * EDGE_MARGIN], nice=False)
    base = alt.Chart({"values": points}).encode(x=x, y=y, color=scheme.colour(), opacity=scheme.opacity())
    lines = base.mark_line(strokeWidth=1.5).encode(strokeDash=scheme.dash())
    marks = base.encode(shape=scheme.marker(), tooltip=_move_tooltips())
    inside = marks.transform_filter("datum.edge == ''").mark_point(filled=True, size=70, stroke="white", strokeWidth=0.5)
    edge = marks.transform_filter("datum.edge != ''").mark_point(fill="white", size=55, strokeWidth=1.6)
    return panel([lines, inside, edge], WIDTH, HEIGHT, "best aspect ratio")


def _best(label: str, tier: TierBest) -> dict[str, Any]:
    return {
        "design": label,
        "parameters": tier.parameters,
        "count": parameter_count(tier.parameters),
        "aspect_ratio": tier.aspect_ratio,
        "edge": tier.edge,
    }


def _move_tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("count:N", title="parameters, total"),
        alt.Tooltip("aspect_ratio:Q", title="best aspect ratio", format=".3~r"),
        alt.Tooltip("edge:N", title="on an edge of the shapes trained"),
    ]


def _caption(ladder: Ladder) -> Iterable[str]:
    laws = ladder.laws
    if laws:
        forms = " or ".join(sorted({law.form for law in laws}, reverse=True))
        yield (
            f"Curves: loss = {forms} with N total parameters / their geometric mean, drawn only between the smallest and the "
            "largest model trained."
        )
        counts = sorted({law.n for law in laws})
        if counts[-1] > 1:
            span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            yield f"Points: mean over {span} seeds, bars ± 1 sample standard deviation."
        else:
            yield "One seed per point, so no error bars."
        if any(law.range is None for law in laws):
            yield f"Through fewer than {TIERS_TO_PREDICT} tiers a curve is no law, and predicts nothing."
        if any(law.range is not None for law in laws):
            yield f"A law predicts from 1/{REACH:g} of the smallest to {REACH:g} times the largest model and refuses beyond."
        if len({law.aspect_ratio for law in laws}) > 1:
            yield "The loss panels share their axes."
    edges = {tier.edge for move in ladder.moves for tier in move.tiers if tier.edge}
    if edges - {FEW}:
        yield "Hollow: the best aspect ratio is the widest or deepest trained, and a better one may lie beyond."
    if FEW in edges:
        yield (
            "Hollow where fewer than three shapes were trained: the better of them."
            if edges == {FEW}
            else ("Hollow also where fewer than three shapes were trained.")
        )
