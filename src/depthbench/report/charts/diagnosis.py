"""What diagnoses found, designs side by side: heatmaps, shares over thresholds, lens and pruning, path weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from depthbench.report.charts.diagnosis_curves import depth_chart, shares_chart
from depthbench.report.charts.diagnosis_maps import heatmaps_chart, paths_chart
from depthbench.report.charts.style import Scheme
from depthbench.report.diagnoses import Diagnosed

if TYPE_CHECKING:
    import altair as alt

HEATMAPS, SHARES, DEPTH, PATHS = "diagnosis_heatmaps", "diagnosis_shares", "diagnosis_depth", "diagnosis_paths"
NAMES = (HEATMAPS, SHARES, DEPTH, PATHS)


def diagnosis_charts(found: Diagnosed, labels: Sequence[str], title: str) -> dict[str, alt.ConcatChart]:
    """The charts that there are measures for."""
    scheme = Scheme(labels, found.measures)
    charts = {
        HEATMAPS: heatmaps_chart(found, title),
        SHARES: shares_chart(found, scheme, title),
        DEPTH: depth_chart(found, scheme, title),
        PATHS: paths_chart(found, title),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}
