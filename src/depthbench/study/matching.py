"""`match="total"`: the feed-forward of each design narrowed until the model has as many parameters as Pre-LN's at that shape."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from depthbench.build import count_parameters
from depthbench.shape import ModelShape
from depthbench.study.cell import DesignChoice

TOLERANCE = 0.005


@cache
def matched_shape(choice: DesignChoice, shape: ModelShape) -> ModelShape:
    """`shape` with the `d_ff` of at most its own at which the built model of the design is nearest to Pre-LN's total of `shape` (of
    equals the smaller). A design with fewer parameters than Pre-LN keeps `d_ff`. See `off_total` for what is left.
    """
    target = shape.total_parameters
    low, high = 1, shape.d_ff  # the count rises with d_ff, so the nearest is found by halving
    while high - low > 1:
        middle = (low + high) // 2
        if _total(choice, replace(shape, d_ff=middle)) < target:
            low = middle
        else:
            high = middle
    nearest = min((low, high), key=lambda d_ff: (abs(_total(choice, replace(shape, d_ff=d_ff)) - target), d_ff))
    return replace(shape, d_ff=nearest)


def off_total(choice: DesignChoice, shape: ModelShape, nominal: ModelShape) -> float:
    """Signed relative distance of the design's total at `shape` from Pre-LN's at `nominal`; beyond ±`TOLERANCE` it is no match."""
    return _total(choice, shape) / nominal.total_parameters - 1


@cache
def _total(choice: DesignChoice, shape: ModelShape) -> int:
    return count_parameters(choice.name, shape, **dict(choice.options)).total
