"""What diagnoses found, designs side by side: heatmaps, shares over thresholds, lens and pruning, path weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.style import GREY, Scheme, clickable, figure, panel
from depthbench.report.diagnoses import Diagnosed

if TYPE_CHECKING:
    import altair as alt

HEATMAPS, SHARES, DEPTH, PATHS = "diagnosis_heatmaps", "diagnosis_shares", "diagnosis_depth", "diagnosis_paths"
NAMES = (HEATMAPS, SHARES, DEPTH, PATHS)
SIDE = 165  # of a heatmap, in pixels
WIDTH, HEIGHT = 330, 230
QUANTILE = 0.98  # of the scores, where a colour scale ends: a few far ones would pale all others
SCALES = ("angular", "causal", "permutation")
Matrix = list[list[float | None]]


def diagnosis_charts(found: Diagnosed, labels: Sequence[str], title: str) -> dict[str, alt.ConcatChart]:
    """The charts that there are measures for."""
    scheme = Scheme(labels, found.measures)
    charts = {
        HEATMAPS: _heatmaps(found, title),
        SHARES: _shares(found, scheme, title),
        DEPTH: _depth(found, scheme, title),
        PATHS: _paths(found, title),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def published_rule(scores: dict[str, Any]) -> dict[str, Any]:
    """The causal scores under the first, published rule."""
    return next(iter(scores.values())) if scores else {}


def _rows(measures: dict[str, Any]) -> Iterator[tuple[str, str, Matrix]]:
    """The heatmaps of a design: a name, the scale that it shares, the matrix."""
    if "angular" in measures:
        yield "angular distance", "angular", measures["angular"]["distance"]
    permutation = measures.get("permutation", {})
    for at, (rule, causal) in enumerate(measures.get("causal", {}).items()):
        for kind in ("trained", "untrained"):
            if kind in causal:
                yield f"causal, {kind}" + (f", {rule}" if at else ""), "causal", causal[kind]["mean_of_ratios"]["score"]
    for kind in ("trained", "untrained"):
        if kind in permutation:
            yield f"permutation, {kind}", "permutation", permutation[kind]["score"]


def _heatmaps(found: Diagnosed, title: str) -> alt.ConcatChart | None:
    import altair as alt

    rows = {label: list(_rows(measures)) for label, measures in found.measures.items()}
    scales = {name: scale for of_design in rows.values() for name, scale, _ in of_design}
    names = sorted(scales, key=lambda name: SCALES.index(scales[name]))  # a rule that few designs have stands by the others
    if not names:
        return None
    tops = {
        scale: _top([matrix for of_design in rows.values() for _, other, matrix in of_design if other == scale]) for scale in SCALES
    }
    panels = []
    for name in names:
        having = [label for label, of_design in rows.items() if any(other == name for other, _, _ in of_design)]
        for label, of_design in rows.items():
            match = next(((scale, matrix) for other, scale, matrix in of_design if other == name), None)
            scale, matrix = match or ("angular", [])
            title_of = f"{label}: {name}" if match else ""
            panels.append(_heatmap(matrix, tops[scale], title_of, legend=label == having[-1], diverging=False))
    caption = [
        f"{found.shape.name}. Angular: depth states z_i (down) and z_j (across), 0 the embedding; arccos(cos)/π.",
        "Causal: block s left out (down), relative change of the update of block l (across).",
        "Permutation: blocks i (down) and j (across) exchanged, relative change of the loss. Blocks from 0.",
        "Untrained: the same model at its initial weights.",
        "One colour scale for each score over all designs, cut at its 98th percentile.",
        _rule_text(found),
        *found.notes,
    ]
    chart = figure(panels, len(rows), "Layer diagnostics", title, caption, len(rows) * (SIDE + 40))
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))
    return chart


def _rule_text(found: Diagnosed) -> str:
    rules = {rule for measures in found.measures.values() for rule in list(measures.get("causal", {}))[:1] if rule != "identity"}
    return f"AttnRes family: a block is skipped by the rule {', '.join(sorted(rules))} unless another is named." if rules else ""


def _top(matrices: Sequence[Matrix]) -> float:
    values = sorted(value for matrix in matrices for row in matrix for value in row if value is not None)
    return max(values[int(QUANTILE * (len(values) - 1))], 1e-6) if values else 1.0


def _heatmap(matrix: Matrix, top: float, name: str, *, legend: bool, diverging: bool) -> Any:
    import altair as alt

    values = [
        {"i": i, "j": j, "value": value, "drawn": max(-top, min(top, value))}
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
        if value is not None
    ]
    if not matrix:
        return panel([alt.Chart({"values": [{}]}).mark_text(text="")], SIDE, SIDE, "")
    size = max(len(matrix), 1)
    side = max(len(matrix[0]) if matrix else 1, 1)
    step = max(1, (size - 1) // 4)

    def axis(count: int) -> alt.Axis:
        return alt.Axis(values=list(range(0, count, step)), labelAngle=0, labelFontSize=10, title=None, ticks=False, domain=False)

    scale = (
        alt.Scale(domain=[-top, 0, top], scheme="redblue", reverse=True)
        if diverging
        else alt.Scale(domain=[0, top], scheme="viridis")
    )
    key = alt.Legend(title=None, gradientLength=SIDE - 10, format=".2~g") if legend else None
    cells = (
        alt.Chart({"values": values})
        .mark_rect()
        .encode(
            x=alt.X("j:O", axis=axis(side)).scale(domain=list(range(side)), padding=0),
            y=alt.Y("i:O", axis=axis(size)).scale(domain=list(range(size)), padding=0),
            color=alt.Color("drawn:Q", scale=scale, legend=key),
            tooltip=[alt.Tooltip("i:O"), alt.Tooltip("j:O"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return panel([cells], SIDE, SIDE, name)


def _shares(found: Diagnosed, scheme: Scheme, title: str) -> alt.ConcatChart | None:
    panels = []
    for score in ("causal", "permutation"):
        lines = []
        for label, measures in found.measures.items():
            of_design = published_rule(measures.get("causal", {})) if score == "causal" else measures.get("permutation", {})
            for kind, value in of_design.items():
                late = value["mean_of_ratios"]["late"] if score == "causal" else value["late"]
                if late["curve"]:
                    lines += _curve(label, kind, late["curve"])
        if lines:
            panels.append(_share_panel(lines, scheme, score, found.thresholds[score]))
    if not panels:
        return None
    panels[0] = clickable(panels[0])
    caption = [
        f"{found.shape.name}: share of late pairs of blocks (both indices at least M/4) whose score exceeds the threshold.",
        "Bands: 95 % intervals over windows. Dotted: the untrained model. Vertical line: the threshold of the published share.",
        _rule_text(found),
        *found.notes,
    ]
    return figure(panels, 2, "Late-layer shares", title, caption, 2 * WIDTH + 160)


def _curve(label: str, kind: str, curve: dict[str, Any]) -> list[dict[str, Any]]:
    low, high = curve["low"] or curve["value"], curve["high"] or curve["value"]
    return [
        {"design": label, "kind": kind, "threshold": at, "share": value, "low": lowest, "high": highest}
        for at, value, lowest, highest in zip(curve["threshold"], curve["value"], low, high, strict=True)
    ]


def _share_panel(lines: list[dict[str, Any]], scheme: Scheme, score: str, threshold: float) -> Any:
    import altair as alt

    x = alt.X("threshold:Q", title=f"threshold of the {score} score").scale(nice=False)
    y = alt.Y("share:Q", title="share of late pairs above it").scale(domain=[0, 1])
    base = alt.Chart({"values": lines}).encode(x=x, color=scheme.colour(), opacity=scheme.opacity())
    tips = [alt.Tooltip("design:N"), alt.Tooltip("threshold:Q", format=".2f"), alt.Tooltip("share:Q", format=".2f")]
    trained = base.transform_filter("datum.kind == 'trained'")
    line = trained.mark_line(strokeWidth=1.8).encode(y=y, tooltip=tips)
    band = trained.mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q")
    control = base.transform_filter("datum.kind != 'trained'").mark_line(strokeWidth=1.2, strokeDash=[2, 3]).encode(y=y)
    rule = alt.Chart({"values": [{}]}).mark_rule(color=GREY, strokeWidth=0.8).encode(x=alt.datum(threshold))
    return panel([line, band, control, rule], WIDTH, HEIGHT, f"{score} score")


def _depth(found: Diagnosed, scheme: Scheme, title: str) -> alt.ConcatChart | None:
    """Curves over depth: the lens after every block, and what leaving out each block, or an affine map in its place, costs."""

    def lens(name: str) -> Callable[[dict[str, Any]], Any]:
        return lambda measures: measures.get("lens", {}).get(name)

    def pruned(measures: dict[str, Any]) -> Any:
        return published_rule(measures.get("pruning", {})).get("trained", {}).get("change")

    curves: list[tuple[str, str, str, Callable[[dict[str, Any]], Any]]] = [
        ("early-exit loss (nats)", "depth state (0: embedding)", "", lens("loss")),
        ("KL(final ‖ early) (nats)", "depth state (0: embedding)", "", lens("divergence")),
        ("loss without the block, minus loss", "block", "symlog", pruned),
        ("loss with an affine block / loss", "block", "log", lambda measures: measures.get("usefulness", {}).get("ratio")),
    ]
    panels = []
    for y_title, x_title, scale, read in curves:
        values = [
            {"design": label, "depth": at, "value": value, "low": low, "high": high}
            for label, measures in found.measures.items()
            if (curve := read(measures))
            for at, (value, low, high) in enumerate(
                zip(curve["value"], curve["low"] or curve["value"], curve["high"] or curve["value"], strict=True)
            )
        ]
        if values:
            panels.append(_depth_panel(values, scheme, x_title, y_title, scale))
    if not panels:
        return None
    panels[0] = clickable(panels[0])
    caption = [f"{found.shape.name}. Bands: 95 % intervals over windows.", _rule_text(found), *found.notes]
    return figure(panels, 2, "Depth by depth", title, caption, 2 * WIDTH + 160)


def _depth_panel(values: list[dict[str, Any]], scheme: Scheme, x_title: str, y_title: str, scale: str) -> Any:
    import altair as alt

    kind: dict[str, Any] = {"type": scale} if scale else {}
    if scale == "symlog":
        kind["constant"] = 0.01
    y = alt.Y("value:Q", title=y_title).scale(zero=False, nice=not kind, **kind)
    base = alt.Chart({"values": values}).encode(
        x=alt.X("depth:Q", title=x_title, axis=alt.Axis(tickMinStep=1, format="d")), color=scheme.colour(), opacity=scheme.opacity()
    )
    tips = [alt.Tooltip("design:N"), alt.Tooltip("depth:Q", title=x_title), alt.Tooltip("value:Q", format=".4f")]
    line = base.mark_line(strokeWidth=1.6).encode(y=y)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(y=y, shape=scheme.marker(), tooltip=tips)
    band = base.mark_area(fillOpacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q")
    return panel([line, dots, band], WIDTH, HEIGHT, "")


def _paths(found: Diagnosed, title: str) -> alt.ConcatChart | None:
    import altair as alt

    matrices = {label: measures["paths"]["weight"] for label, measures in found.measures.items() if "paths" in measures}
    if not matrices:
        return None
    panels = [_heatmap(matrix, _top([_absolute(matrix)]), label, legend=True, diverging=True) for label, matrix in matrices.items()]
    caption = [
        f"{found.shape.name}. Down: the input of each sublayer before its norm, last the close.",
        "Across: the embedding (0) and the raw output of each sublayer before it.",
        "Colour: mean coefficient over tokens, with mixing and norm statistics held fixed; each design has its own scale.",
    ]
    columns = min(3, len(panels))
    chart = figure(panels, columns, "Path weights", title, caption, columns * (SIDE + 90))
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))
    return chart


def _absolute(matrix: Matrix) -> Matrix:
    return [[None if value is None else abs(value) for value in row] for row in matrix]
