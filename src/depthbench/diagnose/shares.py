"""From scores of single windows to numbers with intervals: late shares, curves over thresholds, effective depth. NumPy alone.

The bootstrap resamples windows and computes everything anew from their means, so that a share's interval knows of pairs that lie
near the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RESAMPLES = 1000
LEVEL = 0.95
CAUSAL_THRESHOLD = 0.45
PERMUTATION_THRESHOLD = 0.15
USEFUL_RATIO = 1.1
CURVE_POINTS = 61


@dataclass(frozen=True)
class Interval:
    """A value over all windows, and a 95 % percentile interval over resampled windows; none with a single window."""

    value: float
    low: float | None
    high: float | None


def resampled(n: int, seed: int, resamples: int = RESAMPLES) -> FloatArray:
    """`[1 + resamples, n]`: rows of weights that sum to 1; the first weighs all windows alike."""
    draws = np.random.default_rng(seed).integers(n, size=(resamples, n))
    counts = np.zeros((resamples, n))
    np.add.at(counts, (np.arange(resamples)[:, None], draws), 1.0)
    return np.concatenate((np.full((1, n), 1.0 / n), counts / n))


def means(weights: FloatArray, values: FloatArray) -> FloatArray:
    """Weighted means over windows: `[R, n]` and `[n, …]` to `[R, …]`."""
    return np.asarray((weights @ values.reshape(len(values), -1)).reshape(len(weights), *values.shape[1:]))


def interval(samples: FloatArray, n: int) -> Any:
    """`[R, …]`, of which the first is the value, to an `Interval` or, with more dimensions, a dictionary of nested lists."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(samples[1:], [tail, 1 - tail], axis=0) if n > 1 else (None, None)
    if samples.ndim == 1:
        return asdict(Interval(float(samples[0]), None if low is None else float(low), None if high is None else float(high)))
    return {
        "value": listed(samples[0]),
        "low": None if low is None else listed(low),
        "high": None if high is None else listed(high),
    }


def listed(array: FloatArray) -> Any:
    """Nested lists for JSON; what is not a number is None."""
    found = array.astype(object)
    found[~np.isfinite(array)] = None
    return found.tolist()


def late_pairs(depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All i < j with both at or above depth/4."""
    first = int(np.ceil(depth / 4))
    i, j = np.triu_indices(depth, 1)
    late = i >= first
    return i[late], j[late]


def share_above(samples: FloatArray, threshold: float) -> FloatArray:
    """`[R, pairs]` to the share of pairs above a threshold, `[R]`; NaN without pairs."""
    return np.asarray((samples > threshold).mean(1)) if samples.shape[1] else np.full(len(samples), np.nan)


def late_summary(samples: FloatArray, n: int, threshold: float, highest: float) -> dict[str, Any]:
    """Of `[R, M, M]`: the mean over late pairs, the share above the threshold, and the share's curve up to `highest`."""
    i, j = late_pairs(samples.shape[1])
    late = samples[:, i, j]
    if not late.shape[1]:
        return {"pairs": 0, "threshold": threshold, "mean": None, "share": None, "curve": None}
    grid = np.linspace(0, highest, CURVE_POINTS)
    curve = np.stack([share_above(late, at) for at in grid], axis=1)
    return {
        "pairs": int(late.shape[1]),
        "threshold": threshold,
        "mean": interval(late.mean(1), n),
        "share": interval(share_above(late, threshold), n),
        "curve": {"threshold": listed(grid), **interval(curve, n)},
    }


def permutation_scores(weights: FloatArray, loss: FloatArray, swapped: FloatArray) -> FloatArray:
    """`|loss(swapped) - loss| / loss` of resampled windows, `[R, M, M]`; losses are token means."""
    whole = means(weights, loss)[:, None, None]
    return np.asarray(np.abs(means(weights, swapped) - whole) / whole)


def effective_depth(divergence: FloatArray) -> FloatArray:
    """`[R, M+1]`, KL(final ‖ early) of z_0 … z_M, to (l + 1) / M for the first block l after which it is below half its largest
    value over the blocks' outputs [2512.14064]; the last block's is 0.
    """
    after = divergence[:, 1:]
    below = after < 0.5 * after.max(1, keepdims=True)
    below[:, -1] = True  # at the end nothing is left to happen, also where the divergence is zero throughout
    return np.asarray((below.argmax(1) + 1) / after.shape[1])


def per_window(n: int, seed: int) -> Callable[[FloatArray], Any]:
    """A function from `[n, …]` to means with intervals."""
    weights = resampled(n, seed)
    return lambda values: interval(means(weights, values), n)
