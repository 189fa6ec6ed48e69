"""The charts of a report, each one Altair specification that becomes HTML, PNG and PDF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from depthbench.report.charts import aspect_ratio, depth_gain, evaluation, learning_rate, parameters
from depthbench.report.charts.diagnosis import diagnosis_charts
from depthbench.report.charts.published import published_charts
from depthbench.report.charts.save import remove_others, save
from depthbench.report.content import Content
from depthbench.report.diagnoses import Diagnosed
from depthbench.report.evaluations import Evaluated

if TYPE_CHECKING:
    import altair as alt

__all__ = ["all_charts", "remove_others", "save"]


def all_charts(
    content: Content, diagnosed: Sequence[Diagnosed] = (), evaluated: Sequence[Evaluated] = ()
) -> dict[str, alt.ConcatChart]:
    """The charts that `content` has numbers for, by the name of their files."""
    found = {}
    if aspect_ratio.has_loss(content):
        found[aspect_ratio.NAME] = aspect_ratio.loss_vs_aspect_ratio(content)
    if learning_rate.has_search(content):
        found[learning_rate.NAME] = learning_rate.loss_vs_learning_rate(content)
    if depth_gain.has_gain(content):
        found[depth_gain.NAME] = depth_gain.depth_gain(content)
    if parameters.has_ladder(content):
        found[parameters.NAME] = parameters.loss_vs_parameters(content)
    for at, scores in enumerate(evaluated):
        end = f"_table_{at + 1}" if len(evaluated) > 1 else ""
        found[f"{evaluation.NAME}{end}"] = evaluation.nll_vs_aspect_ratio(scores, content.labels, content.title)
    for at, item in enumerate(diagnosed):
        end = f"_table_{at + 1}" if len(diagnosed) > 1 else ""
        found |= {f"{name}{end}": chart for name, chart in diagnosis_charts(item, content.labels, content.title).items()}
    return found | published_charts(content)
