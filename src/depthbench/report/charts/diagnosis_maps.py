"""Matrices of a diagnosis as heatmaps: scores of pairs of depths, and path weights. A column a design."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.style import figure, panel
from depthbench.report.diagnoses import Diagnosed, scores_of

if TYPE_CHECKING:
    import altair as alt

SIDE = 165  # of a heatmap, in pixels
GAP = 62  # from one to the next, with its axis
LEGEND = 95
QUANTILE = 0.98  # of the scores, where a colour scale ends: a few far ones would pale all others
TICKS = 5  # at most, on a side
PATHS_IN_A_ROW = 3
Matrix = list[list[float | None]]


@dataclass(frozen=True)
class Look:
    """How the matrices of a score are drawn: what its colour bar is called, and the titles of its axes."""

    title: str
    down: str
    across: str
    diverging: bool = False


LOOKS = {
    "angular": Look("angular distance", "depth state i", "depth state j"),
    "causal": Look("causal score", "block s, left out", "block l, changed by it"),
    "permutation": Look("permutation score", "block i", "block j, exchanged with i"),
}
PATH_LOOK = Look("path weight", "input of sublayer (last: close)", "source (0: embedding)", diverging=True)


def heatmaps_chart(found: Diagnosed, title: str) -> alt.ConcatChart | None:
    """A row for each score and kind, a column for each design; one colour scale for each score."""
    import altair as alt

    rows = {label: list(_rows(measures)) for label, measures in found.measures.items()}
    scales = {name: scale for of_design in rows.values() for name, scale, _ in of_design}
    names = sorted(scales, key=lambda name: list(LOOKS).index(scales[name]))  # a rule that few designs have stands by the others
    if not names:
        return None
    tops: dict[str, End] = {}
    for scale in dict.fromkeys(scales[name] for name in names):
        matrices = [matrix for of_design in rows.values() for _, other, matrix in of_design if other == scale]
        tops[scale] = _end(matrices, [_late(matrix) for matrix in matrices] if scale == "permutation" else ())
    panels = []
    for name in names:
        look, end = LOOKS[scales[name]], tops[scales[name]]
        having = [label for label, of_design in rows.items() if any(other == scales[name] for _, other, _ in of_design)]
        for label, of_design in rows.items():
            matrix = next((matrix for other, _, matrix in of_design if other == name), None)
            if matrix is None:
                panels.append(panel([alt.Chart({"values": [{}]}).mark_text(text="")], SIDE, SIDE, ""))
            else:  # in the middle of a row a title or a colour bar would push columns apart
                at = (label == having[0], label == having[-1])
                panels.append(_heatmap(matrix, end, f"{label}: {name}", look, named=at[0], legend=at[1]))
    ends = ", ".join(f"{LOOKS[scale].title} {top}" for scale, top in tops.items())
    of_late = " (of late pairs, for the permutation score)" if "permutation" in tops else ""
    caption = [
        f"{found.shape.name}.",
        "Angular distance: arccos(cos)/π of depth states, 0 the embedding." if "angular" in tops else "",
        "Causal score: relative change of the update of a block when an earlier one is left out." if "causal" in tops else "",
        "Permutation score: relative change of the loss when two blocks are exchanged." if "permutation" in tops else "",
        "Blocks are counted from 0. Untrained: the same model at its initial weights.",
        f"One colour scale for each score over all designs; it ends at the 98th percentile{of_late}: {ends}.",
        rule_text(found),
        *found.notes(*tops),
    ]
    chart = figure(panels, len(rows), "Layer diagnostics", title, caption, _width(len(rows)))
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))
    return chart


def paths_chart(found: Diagnosed, title: str) -> alt.ConcatChart | None:
    """Path weights of each design, in a colour scale of its own: a sum over streams is larger than a mean over sources."""
    import altair as alt

    matrices = {label: measures["paths"]["weight"] for label, measures in found.measures.items() if "paths" in measures}
    if not matrices:
        return None
    columns = min(PATHS_IN_A_ROW, len(matrices))
    panels = [
        _heatmap(matrix, _end([matrix]), f"{label}, own colour scale", PATH_LOOK, named=at % columns == 0, legend=True)
        for at, (label, matrix) in enumerate(matrices.items())
    ]
    wrong = [label for label in matrices if found.measures[label]["paths"].get("linear") is False]
    caption = [
        f"{found.shape.name}. Down: the input of each sublayer before its norm, last the close.",
        "Across: the embedding (0) and the raw output of each sublayer before it.",
        "Colour: mean coefficient over tokens, with mixing and norm statistics held fixed.",
        "Each design has its own colour scale, which ends at its 98th percentile.",
        f"Not to be trusted: {', '.join(wrong)}, whose mixing coefficients depend on the state and are not held fixed."
        if wrong
        else "",
        *found.notes("paths"),
    ]
    chart = figure(panels, columns, "Path weights", title, caption, columns * (SIDE + GAP + LEGEND))
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent"))
    return chart


def rule_text(found: Diagnosed) -> str:
    """Which rule leaves out blocks, where it is not that of a single stream."""
    rules = {rule for measures in found.measures.values() for rule in list(measures.get("causal", {}))[:1] if rule != "identity"}
    return f"AttnRes family: a block is skipped by the rule {', '.join(sorted(rules))} unless another is named." if rules else ""


def _rows(measures: dict[str, Any]) -> Iterator[tuple[str, str, Matrix]]:
    """The heatmaps of a design: a name, the scale that it shares, the matrix."""
    if "angular" in measures:
        yield "angular distance", "angular", measures["angular"]["distance"]
    for at, (rule, causal) in enumerate(measures.get("causal", {}).items()):
        for kind in ("trained", "untrained"):
            if kind in causal:
                yield f"causal, {kind}" + (f", {rule}" if at else ""), "causal", causal[kind]["mean_of_ratios"]["score"]
    permutation = scores_of(measures, "permutation")
    for kind in ("trained", "untrained"):
        if kind in permutation:
            yield f"permutation, {kind}", "permutation", permutation[kind]["score"]


def _late(matrix: Matrix) -> Matrix:
    """The pairs that late shares count; all of them where there are none."""
    first = math.ceil(len(matrix) / 4)
    late = [row[first:] for row in matrix[first:]]
    return late if any(value is not None for row in late for value in row) else matrix


@dataclass(frozen=True)
class End:
    """Where a colour scale ends, and whether it cuts values off."""

    top: float
    cuts: bool

    def __str__(self) -> str:
        return f"{'≥ ' if self.cuts else ''}{self.top:.2g}"


def _end(matrices: Sequence[Matrix], counted: Sequence[Matrix] = ()) -> End:
    """That of `matrices`, from the values of `counted` if they are given."""
    sizes = [abs(value) for matrix in matrices for row in matrix for value in row if value is not None]
    values = sorted(abs(value) for matrix in counted or matrices for row in matrix for value in row if value is not None)
    top = max(values[round(QUANTILE * (len(values) - 1))], 1e-6) if values else 1.0
    return End(top, any(size > top * (1 + 1e-9) for size in sizes))


def _width(columns: int) -> int:
    return columns * (SIDE + GAP) + LEGEND


def _heatmap(matrix: Matrix, end: End, name: str, look: Look, *, named: bool, legend: bool) -> Any:
    """The rows and columns that have values. `named`: with a title on the axis at the side; `legend`: with a colour bar."""
    import altair as alt

    top = end.top
    values = [
        {"i": i, "j": j, "value": value, "drawn": max(-top, min(top, value))}
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
        if value is not None
    ]

    def axis(key: str, title: str | None) -> dict[str, Any]:
        present = sorted({int(value[key]) for value in values})
        step = math.ceil(len(present) / TICKS)
        ticks = alt.Axis(
            values=[at for at in present if at % step == 0],
            labelAngle=0,
            labelFontSize=10,
            titleFontSize=10,
            titlePadding=3,
            title=title,
            ticks=False,
            domain=False,
        )
        return {"axis": ticks, "scale": alt.Scale(domain=present, padding=0)}

    scale = alt.Scale(domain=[0, top], scheme="viridis")
    ends = [0, top / 2, top]
    if look.diverging:
        scale, ends = alt.Scale(domain=[-top, 0, top], scheme="redblue", reverse=True), [-top, 0, top]
    marked = f"(datum.value >= {top * 0.999} ? '≥ ' : datum.value <= {-top * 0.999} ? '≤ ' : '') + "
    bar = alt.Legend(
        title=look.title,
        titleFontSize=10,
        labelFontSize=10,
        gradientLength=SIDE - 24,
        values=ends,
        labelExpr=f"{marked if end.cuts else ''}format(datum.value, '.2~g')",
    )
    cells = (
        alt.Chart({"values": values})
        .mark_rect()
        .encode(
            x=alt.X("j:O", **axis("j", look.across)),
            y=alt.Y("i:O", **axis("i", look.down if named else None)),
            color=alt.Color("drawn:Q", scale=scale, legend=bar if legend else None),
            tooltip=[alt.Tooltip("i:O"), alt.Tooltip("j:O"), alt.Tooltip("value:Q", format=".4f")],
        )
    )
    return panel([cells], SIDE, SIDE, name)
