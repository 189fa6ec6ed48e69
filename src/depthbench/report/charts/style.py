"""What all charts share: fonts, the looks of the designs as encodings, titles and captions.

Altair takes most of a second to import, so the charts import it where they use it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from depthbench.report.looks import SOLID, looks
from depthbench.text import plain, ratio_text
from depthbench.verdict.rows import Shape

if TYPE_CHECKING:
    import altair as alt

DASHED_FROM = 5  # with fewer designs, markers tell solid lines apart
MARGIN = 1.15  # of logarithmic axes
CLICKED = "clicked"
FADED = 0.06
CHARACTER = 5.4  # mean width of one in a caption, in pixels
LABEL_LIMIT = 400
FONT = "Helvetica, Arial, Liberation Sans, sans-serif"
GREY = "#666"
LOSS_TITLE = "validation loss (nats per token)"
RATIO_TITLE = "deeper, narrower  ←  aspect ratio d_model / n_layers  →  shallower, wider"
TITLE_AT = -8  # pixels below the top of the plotting area
SMALL_FROM = 440  # narrower panels have short axis titles
_TEXT = {"labelFont": FONT, "titleFont": FONT, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
_BLACK = {"labelColor": "black", "titleColor": "black"}
CONFIG: dict[str, Any] = {
    "background": "white",
    "font": FONT,
    "padding": 10,
    "axis": {**_TEXT, **_BLACK, "gridColor": "#E4E4E4", "domainColor": "black", "tickColor": "black"},
    "legend": {**_TEXT, **_BLACK},
    "title": {"anchor": "start", "font": FONT, "subtitleFont": FONT, "subtitleColor": "#444", "subtitlePadding": 4},
    "view": {"stroke": None},
    "concat": {"spacing": 24},
}


class Scheme:
    """The looks of `shown` designs as encodings with one legend. Looks are given out over `labels`, all designs of the report."""

    def __init__(self, labels: Sequence[str], shown: Iterable[str]):
        style = looks(labels)
        drawn = set(shown)
        self.labels = [label for label in labels if label in drawn]
        self._looks = [style[label] for label in self.labels]

    def legend(self) -> alt.Legend:
        """The legend of designs, the same in every chart."""
        import altair as alt

        return alt.Legend(title="design", symbolSize=80, symbolStrokeWidth=0, symbolOpacity=1, labelLimit=LABEL_LIMIT)

    def colour(self, legend: bool = True) -> alt.Color:
        """Colours of designs."""
        import altair as alt

        colours = [look.colour for look in self._looks]
        return alt.Color("design:N", legend=self.legend() if legend else None).scale(domain=self.labels, range=colours)

    def dash(self) -> alt.StrokeDash:
        """Dashes, all solid among few designs."""
        import altair as alt

        dashes = [look.dash if len(self.labels) >= DASHED_FROM else SOLID for look in self._looks]
        return alt.StrokeDash("design:N", legend=self.legend()).scale(domain=self.labels, range=dashes)

    def marker(self, legend: bool = True) -> alt.Shape:
        """Markers of designs."""
        import altair as alt

        markers = [look.marker for look in self._looks]
        return alt.Shape("design:N", legend=self.legend() if legend else None).scale(domain=self.labels, range=markers)

    def opacity(self) -> Any:
        """Full for the designs clicked in the legend, or for all."""
        import altair as alt

        return alt.when(alt.selection_point(name=CLICKED)).then(alt.value(1)).otherwise(alt.value(FADED))


def ratio_axis(shapes: Iterable[tuple[float, int]], width: int) -> alt.X:
    """Aspect ratios, logarithmic, with a tick at every one of `shapes` (aspect ratio, layers) that says how many layers it has."""
    import altair as alt

    layers: dict[float, set[int]] = {}
    for ratio, n_layers in shapes:
        layers.setdefault(ratio, set()).add(n_layers)
    ticks = sorted(layers)
    labels = [[ratio_text(ratio), ", ".join(map(str, sorted(layers[ratio]))) + "L"] for ratio in ticks]
    axis = alt.Axis(
        values=ticks,
        labelExpr=f"{json.dumps(labels)}[indexof({json.dumps(ticks)}, datum.value)]",
        labelOverlap="greedy",
        titlePadding=10,
    )
    title = RATIO_TITLE if width >= SMALL_FROM else "aspect ratio d_model / n_layers"
    domain = [ticks[0] / MARGIN, ticks[-1] * MARGIN]
    return alt.X("aspect_ratio:Q", axis=axis).scale(type="log", domain=domain, nice=False).title(title)


def of_shapes(shapes: Iterable[Shape]) -> list[tuple[float, int]]:
    """Aspect ratio and layers of every shape, for `ratio_axis`."""
    return [(shape.aspect_ratio, shape.n_layers) for shape in shapes]


def figure(panels: Sequence[Any], columns: int, name: str, title: str, caption: Iterable[str], width: int) -> alt.ConcatChart:
    """`panels` in rows of `columns` under a title and a caption that is wrapped to `width` pixels."""
    import altair as alt

    heading = f"{plain(title)}: {name[0].lower()}{name[1:]}" if title else name
    text = plain(" ".join(note for note in caption if note)).replace(" × ", "\u00a0×\u00a0")
    lines = textwrap.wrap(text, int(width / CHARACTER))
    top = alt.Title(heading, subtitle=lines, fontSize=14, subtitleFontSize=11, offset=14)
    return alt.ConcatChart(concat=list(panels), columns=columns, title=top, config=CONFIG)


def clickable(panel: Any) -> Any:
    """`panel` with the selection by clicks in the legend, which holds for all panels of a figure: give it to one of them.

    Its first layer takes it, which must be a plain mark: error bars are several.
    """
    import altair as alt

    return panel.add_params(alt.selection_point(name=CLICKED, fields=["design"], bind="legend"))


def panel(layers: Sequence[Any], width: int, height: int, title: str, **options: Any) -> alt.LayerChart:
    """`layers` as one panel, with its title right above the plotting area unless that is empty.

    The title is a mark: Vega moves real titles up by what the tick labels need, and those of neighbours would not be level.
    """
    import altair as alt

    found = list(layers)
    if title:
        text = alt.Chart({"values": [{}]}).mark_text(align="left", baseline="bottom", fontSize=12, font=FONT, color="black")
        found.append(text.encode(x=alt.value(0), y=alt.value(TITLE_AT), text=alt.value(plain(title))))
    return alt.LayerChart(layer=found, width=width, height=height, **options)


def group_title(text: str) -> Any:
    """The title of several panels that belong together; empty text gives none."""
    import altair as alt

    return alt.Title(plain(text), fontSize=12, fontWeight="bold", frame="group", offset=8) if text else alt.Undefined
