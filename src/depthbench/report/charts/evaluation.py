"""Likelihood of tasks against aspect ratio: a panel for every task and for the mean of every group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.style import Scheme, clickable, figure, of_shapes, panel, ratio_axis
from depthbench.report.evaluations import GROUP_MEAN, Evaluated, TaskScore

if TYPE_CHECKING:
    import altair as alt

NAME = "nll_vs_aspect_ratio"
WIDTH, HEIGHT = 300, 200
COLUMNS = 3


def nll_vs_aspect_ratio(found: Evaluated, labels: Sequence[str], title: str) -> alt.ConcatChart:
    """Nats per token of the targets of every task, given their prompts, with bars of ± one standard error over documents."""
    scheme = Scheme(labels, [score.label for score in found.scores])
    panels = []
    for group, task in found.panels():
        scores = [score for score in found.scores if (score.group, score.task) == (group, task)]
        name = f"{group}: {'mean of tasks' if task == GROUP_MEAN else task}" if task != group else task
        panels.append(_panel(scores, scheme, name))
    panels[0] = clickable(panels[0])
    seeds = {score.seeds for score in found.scores}
    caption = [
        "Teacher-forced: nats per token of each target given its prompt. Bars ± 1 standard error over documents, which all",
        "designs share, so differences between designs are surer than the bars look.",
        f"Means over {min(seeds)}{f' to {max(seeds)}' if len(seeds) > 1 else ''} seed{'s' if max(seeds) > 1 else ''}.",
        *found.notes,
    ]
    columns = min(COLUMNS, len(panels))
    return figure(panels, columns, "Likelihood of tasks", title, caption, columns * WIDTH + 120)


def _panel(scores: Sequence[TaskScore], scheme: Scheme, title: str) -> Any:
    import altair as alt

    values = [
        {
            "design": score.label,
            "shape": score.shape.name,
            "aspect_ratio": score.shape.aspect_ratio,
            "nll": score.nll,
            "low": None if score.nll_error is None else score.nll - score.nll_error,
            "high": None if score.nll_error is None else score.nll + score.nll_error,
            "bits_per_byte": score.bits_per_byte,
        }
        for score in scores
    ]
    base = alt.Chart({"values": values}).encode(
        x=ratio_axis(of_shapes({score.shape: None for score in scores}), WIDTH), color=scheme.colour(), opacity=scheme.opacity()
    )
    y = alt.Y("nll:Q", title="NLL (nats per token)").scale(zero=False, nice=False, padding=12)
    tips = [
        alt.Tooltip("design:N"),
        alt.Tooltip("shape:N", title="layers × width"),
        alt.Tooltip("nll:Q", title="nats per token", format=".4f"),
        alt.Tooltip("bits_per_byte:Q", title="bits per byte", format=".4f"),
    ]
    lines = base.mark_line(strokeWidth=1.6).encode(y=y, strokeDash=scheme.dash())
    bars = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2).encode(y=alt.Y("low:Q"), y2="high:Q")
    dots = base.mark_point(filled=True, size=60, stroke="white", strokeWidth=0.5).encode(y=y, shape=scheme.marker(), tooltip=tips)
    return panel([lines, bars, dots], WIDTH, HEIGHT, title)
