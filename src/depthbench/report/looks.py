"""How each design is drawn: a colour, a marker and a dash of its own, the same in every chart.

The ten designs keep their look whatever stands beside them, so a reader learns it once; families share a hue. Colours follow Okabe
and Ito (2008) and Tol's muted scheme, chosen so that every pair stays apart for colour-blind readers; markers and dashes tell the
designs apart without any colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

STAR = "M0,-1.2L0.35,-0.42L1.18,-0.37L0.55,0.17L0.75,0.97L0,0.52L-0.75,0.97L-0.55,0.17L-1.18,-0.37L-0.35,-0.42Z"
HOURGLASS = "M-1.1,-1.1L1.1,-1.1L0.3,0L1.1,1.1L-1.1,1.1L-0.3,0Z"
BOW_TIE = "M-1.1,-1.1L0,-0.3L1.1,-1.1L1.1,1.1L0,0.3L-1.1,1.1Z"
SOLID: tuple[int, ...] = (1, 0)


@dataclass(frozen=True)
class Look:
    """A colour (hex), a marker (a Vega symbol name or an SVG path in the unit square) and a dash (lengths in pixels)."""

    colour: str
    marker: str
    dash: tuple[int, ...] = SOLID


LOOKS = {
    "preln": Look("#000000", "circle"),
    "sandwich": Look("#666666", BOW_TIE, (6, 2)),
    "lns": Look("#CC79A7", "triangle-up", (10, 3, 2, 3, 2, 3)),
    "deepnorm": Look("#661100", "triangle-down", (8, 2, 2, 2)),
    "keel": Look("#999933", "cross", (4, 4)),
    "hc": Look("#D55E00", "diamond"),
    "mhc": Look("#E69F00", STAR, (6, 2)),
    "attnres": Look("#0072B2", "square"),
    "attnres_block": Look("#56B4E9", "triangle-right", (2, 2)),
    "moda": Look("#009E73", "triangle-left", (8, 2, 2, 2)),
}
SPARE_COLOURS = ("#332288", "#CC6677", "#44AA99", "#AA4499", "#117733", "#6B4226")
SPARE_MARKERS = (HOURGLASS, "triangle-up", "circle", "square", "diamond", "cross", STAR)
SPARE_DASHES = (SOLID, (6, 2), (2, 2), (8, 2, 2, 2), (4, 4))


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look for every label. Users' designs and designs with options take the spare ones in turn, 210 without a repeat."""
    found = {}
    spare = 0
    for label in labels:
        if label in LOOKS:
            found[label] = LOOKS[label]
            continue
        found[label] = Look(
            SPARE_COLOURS[spare % len(SPARE_COLOURS)],
            SPARE_MARKERS[spare % len(SPARE_MARKERS)],
            SPARE_DASHES[spare % len(SPARE_DASHES)],
        )
        spare += 1
    return found
