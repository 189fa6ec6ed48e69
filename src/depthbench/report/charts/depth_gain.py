"""Depth gain of every design with its interval, in the order of their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.charts.style import GREY, LABEL_LIMIT, Scheme, figure, panel
from depthbench.report.content import Content, Section
from depthbench.text import interval_text, rank_text, some
from depthbench.verdict.verdicts import DesignVerdict

if TYPE_CHECKING:
    import altair as alt

NAME = "depth_gain"
WIDTH, ROW = 380, 26  # of a panel and of each design in it, in pixels
COLUMNS = 2
X_TITLE = "worse when deeper  ←  depth gain (nats per token)  →  better when deeper"


def has_gain(content: Content) -> bool:
    """Whether any design finished two depths."""
    return any(section.with_gain for section in content.sections)


def depth_gain(content: Content) -> alt.ConcatChart:
    """A row for every design: rank range, gain with its 95 % interval, verdict. Hollow dots have no interval."""
    sections = [section for section in content.sections if section.with_gain]
    scheme = Scheme(content.labels, [design.label for section in sections for design in section.with_gain])
    several = len(sections) > 1
    panels = [_panel(section, scheme, section.table.title if several else "") for section in sections]
    columns = min(COLUMNS, len(panels))
    return figure(panels, columns, "Depth gain", content.title, _caption(sections), columns * (WIDTH + 240))


def _panel(section: Section, scheme: Scheme, title: str) -> alt.LayerChart:
    import altair as alt

    points = [_point(design) for design in section.with_gain]
    base = alt.Chart({"values": points}).encode(
        y=alt.Y("name:N", sort=[point["name"] for point in points], title=None).axis(
            domain=False, ticks=False, labelLimit=LABEL_LIMIT, labelPadding=8, grid=True, gridDash=[1, 3]
        ),
        color=scheme.colour(legend=False),
    )
    axis = alt.Axis(tickCount=6, titlePadding=8, labelFlush=False, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("gain:Q", title=X_TITLE, axis=axis).scale(zero=True, padding=8)
    certain = "isValid(datum.low)"
    zero = alt.Chart({"values": [{}]}).mark_rule(color="black", strokeWidth=1).encode(x=alt.datum(0))
    bars = base.transform_filter(certain).mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=X_TITLE), x2="high:Q")
    dots = base.encode(x=x, shape=scheme.marker(legend=False), tooltip=_tooltips())
    filled = dots.transform_filter(certain).mark_point(filled=True, size=85, stroke="white", strokeWidth=0.5, opacity=1)
    hollow = dots.transform_filter(f"!{certain}").mark_point(fill="white", size=65, strokeWidth=1.6, opacity=1)
    verdicts = base.mark_text(align="left", fontSize=11, color=GREY, baseline="middle")
    verdicts = verdicts.encode(x=alt.value(WIDTH + 10), text="verdict:N", color=alt.value(GREY))
    return panel([zero, bars, filled, hollow, verdicts], WIDTH, ROW * len(points), title)


def _point(design: DesignVerdict) -> dict[str, Any]:
    assert design.gain is not None
    rank = rank_text(design.rank)
    return {
        "name": f"{design.label}  ({rank})" if design.rank else design.label,
        "design": design.label,
        "gain": design.gain.value,
        "low": design.gain.low,
        "high": design.gain.high,
        "interval": interval_text(design.gain.low, design.gain.high) or "none",
        "rank": rank,
        "verdict": design.verdict or "",
        "reason": design.reason,
        "n": design.n,
    }


def _tooltips() -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("design:N"),
        alt.Tooltip("gain:Q", title="depth gain", format="+.4f"),
        alt.Tooltip("interval:N", title="95 % interval"),
        alt.Tooltip("rank:N"),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("reason:N", title="because"),
        alt.Tooltip("n:Q", title="paired seeds"),
    ]


def _caption(sections: Sequence[Section]) -> list[str]:
    designs = [design for section in sections for design in section.with_gain]
    certain = [design for design in designs if design.n > 1]
    found = [_ends(sections[0]) if len(sections) == 1 else "Loss at the widest minus loss at the deepest compared shape."]
    if not certain:
        return [*found, "One seed: point estimates without interval, rank or verdict, in the order of the tables."]
    counts = sorted({design.n for design in certain})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    found.append(f"Bars: 95 % intervals over {span} paired seeds, unadjusted.")
    found.append("In brackets: ranks that the pairs allow after Holm's adjustment.")
    if len(certain) < len(designs):
        found.append("Hollow: one seed, so no interval and no rank.")
    if any(design.verdict for design in designs):
        found.append("Verdicts rest on the slope over all compared shapes.")
    without = [design.label for section in sections for design in section.verdicts.designs if design.gain is None]
    return [*found, f"Not compared: {some(without)}." if without else ""]


def _ends(section: Section) -> str:
    shapes = section.summary.compared
    return f"Loss at {shapes[0].name} minus loss at {shapes[-1].name}."
