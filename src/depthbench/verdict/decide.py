"""One design's verdict from its losses at the compared shapes, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from depthbench.verdict.statistics import (
    LEVEL,
    MOST_SEEDS,
    Estimate,
    FloatArray,
    difference,
    equal_slopes,
    equal_variance,
    estimate,
    noise,
    seeds_needed,
    slope_weights,
    straight,
    weigh,
)

MARGIN = 0.005  # nats per token and doubling of depth
IMPROVES, FLAT, WORSE, UNDECIDED = "improves with depth", "flat", "worse with depth", "undecided"
SLOPES_DIFFER = 0.01  # stricter than the level of one test, for there is one for every design


@dataclass(frozen=True)
class Decision:
    """`verdict` is None where no verdict can be given; `needed_seeds` is a rough number where it is undecided."""

    verdict: str | None
    reason: str
    needed_seeds: int | None = None


def decide(losses: FloatArray, n_layers: Sequence[int], margin: float = MARGIN) -> Decision:
    """The verdict on `losses` [shapes, seeds], from the widest shape to the deepest.

    A depth between the ends is called best if it is better than both, each at 0.05 / 2 / (number of depths between). Otherwise the
    95 % interval of the slope decides: it excludes 0 (improves, worse), or lies within ± `margin` (flat), or neither (undecided).
    """
    n = losses.shape[1]
    if n < 2:
        return Decision(None, "One seed gives no interval and no verdict: 2 seeds give one, 3 or more a useful one.")
    inner = best_inside(losses)
    if inner is not None:
        ends = losses[[0, -1]].mean(axis=1) - losses[inner].mean()
        reason = f"{ends[0]:.4f} below the widest and {ends[1]:.4f} below the deepest shape, both beyond the noise."
        return Decision(f"best at M = {n_layers[inner]}", reason)
    weights = slope_weights(n_layers)
    slope = estimate(losses, weights)
    assert slope.low is not None and slope.high is not None
    span = f"95 % interval of the slope, {slope.low:+.4f} to {slope.high:+.4f},"
    if slope.high < 0 or slope.low > 0:
        return Decision(IMPROVES if slope.high < 0 else WORSE, f"The {span} excludes 0.")
    if max(-slope.low, slope.high) <= margin:
        return Decision(FLAT, f"The {span} lies within ±{margin:g}.")
    needed = seeds_needed(max(abs(slope.value), margin - abs(slope.value)), float(noise(losses)), weights, n)
    more = f"about {needed} seeds would probably decide" if needed else f"more than {MOST_SEEDS} seeds would be needed"
    return Decision(UNDECIDED, f"The {span} holds 0 and reaches beyond ±{margin:g}; with this noise {more}.", needed)


def best_inside(losses: FloatArray) -> int | None:
    """The index of the best shape between the ends, if it is better than both of them beyond the noise."""
    n_shapes = losses.shape[0]
    if n_shapes < 3:
        return None
    inner = 1 + int(np.argmin(losses[1:-1].mean(axis=1)))
    for end in (0, -1):
        value, error, df = weigh(losses, difference(end, inner, n_shapes))
        if float(stdtr(df, -value / error)) > LEVEL / 2 / (n_shapes - 2):
            return None
    return inner


def doubts(losses: FloatArray, n_layers: Sequence[int], slope: Estimate) -> tuple[str, ...]:
    """Sentences on what speaks against the model behind the intervals; they change no verdict."""
    found = []
    p = equal_variance(losses)
    if p is not None and p < LEVEL:
        found.append(f"The noise differs between shapes (Bartlett p = {p:.2g}); the intervals take it to be equal.")
    p = equal_slopes(losses, slope_weights(n_layers))
    if p is not None and p < SLOPES_DIFFER:
        found.append(f"Slopes differ between seeds by more than the noise (F test p = {p:.2g}); the intervals are too narrow.")
    p = straight(losses, n_layers)
    if p is not None and p < LEVEL:
        found.append(f"The losses do not lie on one line against log2(n_layers) (p = {p:.2g}); the slope is only their mean trend.")
    if slope.bootstrap and slope.low is not None and slope.high is not None:
        low, high = slope.bootstrap
        if (low > 0 or high < 0) != (slope.low > 0 or slope.high < 0):
            found.append(f"The bootstrap interval of the slope, {low:+.4f} to {high:+.4f}, would decide otherwise about 0.")
    return tuple(found)
