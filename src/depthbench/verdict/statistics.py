"""Intervals and tests for losses of shapes × seeds, numbers in and numbers out.

**The model.** Within one seed all shapes and designs see the same batches, and designs of one shape start from the same backbone.
So for one design, and for the difference of two designs on the seeds they share,

    loss[shape, seed] = shape effect + seed effect + noise

and what the shapes of one seed have in common is no noise in their differences. The noise has the variance of the two-way
residuals, with (shapes - 1)(seeds - 1) degrees of freedom, taken to be the same at all shapes. A *contrast* of shapes (weights
that sum to zero: a slope, a depth gain) is free of seed effects and has a Student t interval from that pooled variance. A *level*
(weights that do not, such as the mean loss) keeps the seed effects: one number a seed, seeds - 1 degrees of freedom.

**Why seeds are not resampled.** With 2 to 5 seeds a bootstrap over seeds has almost nothing to draw from: of two seeds there are
three resamples. Its spread is too small by sqrt((n - 1) / n), and its percentiles are those of a normal and not of a t
distribution: at three seeds its nominal 95 % interval of a gain misses more than one time in five. What has no closed form is
instead drawn from the fitted model (`draw_means`), with the uncertainty of the variance itself, so that a contrast of the draws
spreads as its t interval does. The bootstrap that stands beside a t interval resamples residuals, of which there are
shapes × seeds, and studentises; where the two disagree, the noise is not normal. All generators start from a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc, stdtr, stdtrit

FloatArray = NDArray[np.float64]
LEVEL = 0.05
POWER = 0.8
# Losses come from fp32 sums: a spread below this is rounding, and no interval is narrower for it.
LEAST_SIGMA = 1e-7
DRAWS = 4000
LEAST_DF = 4  # of residuals that are resampled
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval, unadjusted for other comparisons, and its two-sided p-value against zero, over `n` seeds.

    `low`, `high`, `df` and `p` are None with one seed. `bootstrap` is an interval from resampled residuals, for comparison, where
    there are enough of them. What comes from draws of the fitted model has an interval, but no `df` and no `p`.
    """

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    df: int | None = None
    p: float | None = None
    bootstrap: tuple[float, float] | None = None


def residuals(losses: FloatArray) -> FloatArray:
    """What shape and seed effects leave of `losses` [..., shapes, seeds]."""
    centred = losses - losses.mean(axis=-1, keepdims=True)
    found: FloatArray = centred - centred.mean(axis=-2, keepdims=True)
    return found


def degrees(losses: FloatArray) -> int:
    """Degrees of freedom of the residuals."""
    n_shapes, n = losses.shape[-2:]
    return int((n_shapes - 1) * (n - 1))


def noise(losses: FloatArray) -> FloatArray:
    """Standard deviation of the noise of `losses` [..., shapes, seeds] from their residuals; needs two of each."""
    squares = np.sum(residuals(losses) ** 2, axis=(-2, -1))
    sigma: FloatArray = np.maximum(np.sqrt(squares / degrees(losses)), LEAST_SIGMA)
    return sigma


def weigh(losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, int]:
    """Value, standard error and degrees of freedom of `weights` [shapes] over `losses` [..., shapes, seeds], two seeds or more."""
    n = losses.shape[-1]
    per_seed = np.einsum("k,...kn->...n", weights, losses)
    if abs(weights.sum()) < 1e-9:
        return per_seed.mean(axis=-1), noise(losses) * math.sqrt(float(weights @ weights) / n), degrees(losses)
    spread = np.maximum(per_seed.std(axis=-1, ddof=1), LEAST_SIGMA)
    return per_seed.mean(axis=-1), spread / math.sqrt(n), n - 1


def estimate(losses: FloatArray, weights: FloatArray, resample: bool = False) -> Estimate:
    """`weights` [shapes] over `losses` [shapes, seeds] with its t interval; with `resample` also by bootstrap of residuals."""
    n = losses.shape[1]
    if n < 2:
        return Estimate(float(weights @ losses.mean(axis=1)), n)
    value, error, df = (float(part) for part in weigh(losses, weights))
    half = quantile(1 - LEVEL / 2, df) * error
    p = 2 * float(stdtr(df, -abs(value) / error))
    interval = _resampled(losses, weights) if resample and df >= LEAST_DF else None
    return Estimate(value, n, value - half, value + half, int(df), p, interval)


def quantile(probability: float, df: float) -> float:
    """Of Student's t distribution."""
    return float(stdtrit(df, probability))


def slope_weights(n_layers: Sequence[int]) -> FloatArray:
    """Weights that give the least-squares slope against log2(n_layers)."""
    centred = np.log2(np.asarray(n_layers, dtype=np.float64))
    centred -= centred.mean()
    weights: FloatArray = centred / (centred @ centred)
    return weights


def difference(plus: int, minus: int, n_shapes: int) -> FloatArray:
    """Weights that give the loss at shape `plus` minus the loss at shape `minus`; `difference(0, -1, n)` is the depth gain."""
    weights = np.zeros(n_shapes)
    weights[plus], weights[minus] = 1.0, -1.0
    return weights


def level(n_shapes: int) -> FloatArray:
    """Weights that give the mean over shapes."""
    return np.full(n_shapes, 1 / n_shapes)


def _resampled(losses: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Bootstrap-t interval: residuals drawn with replacement, every draw with its own standard error."""
    rng = np.random.default_rng(0)
    found = residuals(losses) * math.sqrt(losses.size / degrees(losses))
    drawn = rng.choice(found.ravel(), size=(DRAWS, *losses.shape))
    shift, error, _ = weigh(drawn, weights)
    low, high = np.quantile(shift / error, [LEVEL / 2, 1 - LEVEL / 2])
    value, own, _ = weigh(losses, weights)
    return float(value - high * own), float(value - low * own)


def draw_means(losses: FloatArray, draws: int = DRAWS, stream: int = 0) -> FloatArray:
    """Means over seeds as they might have been: [draws, designs, shapes] around those of `losses` [designs, shapes, seeds].

    Every draw adds normal noise with the residual covariance of the designs (noise that designs share in a cell of a seed stays
    shared), widened as Student's t for the degrees of freedom. Seed effects are left out: compare shapes within a draw, not
    designs. Draws of different `stream` are independent.
    """
    rng = np.random.default_rng(stream)
    n_designs, n_shapes, n = losses.shape
    df = degrees(losses)
    found = residuals(losses).reshape(n_designs, -1)
    mixed = rng.standard_normal((draws, n_shapes, found.shape[1])) @ found.T / math.sqrt(df * n)
    widened = mixed * np.sqrt(df / rng.chisquare(df, size=(draws, 1, 1)))
    means: FloatArray = losses.mean(axis=2) + np.swapaxes(widened, 1, 2)
    return means


def interval(draws: FloatArray) -> tuple[float, float]:
    """The middle 95 % of `draws`."""
    low, high = np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def holm(p_values: ArrayLike) -> FloatArray:
    """P-values adjusted for their number by Holm's step-down rule (1979): those at most 0.05 hold together at 5 %."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted


def equal_variance(losses: FloatArray) -> float | None:
    """P-value of equal noise at all shapes: Bartlett's test of `losses` [shapes, seeds] without their seed effects.

    None with fewer than three shapes, where the residuals of both are the same, or two seeds. With so few seeds it finds only
    gross differences, and with equal noise it doubts rather less often than its p-value says.
    """
    if losses.shape[0] < 3 or losses.shape[1] < 2:
        return None
    from scipy.stats import bartlett  # scipy.stats takes long to import

    centred = losses - losses.mean(axis=0)
    if np.any(centred.std(axis=1) < LEAST_SIGMA):
        return None
    return float(bartlett(*centred).pvalue)


def equal_slopes(losses: FloatArray, weights: FloatArray) -> float | None:
    """P-value of a contrast that spreads over seeds no more than the rest of the noise does: an F test on `losses` [shapes, seeds].

    A small one says that seeds differ in their slope itself, so that an interval from the pooled variance is too narrow.
    """
    n_shapes, n = losses.shape
    if n_shapes < 3 or n < 2:
        return None
    found = residuals(losses)
    per_seed = weights @ found / math.sqrt(float(weights @ weights))
    own = float(per_seed @ per_seed) / (n - 1)
    rest_df = (n_shapes - 2) * (n - 1)
    rest = (float(np.sum(found**2)) - float(per_seed @ per_seed)) / rest_df
    return float(fdtrc(n - 1, rest_df, own / max(rest, LEAST_SIGMA**2)))


def straight(losses: FloatArray, n_layers: Sequence[int]) -> float | None:
    """P-value of means over seeds on one line against log2(n_layers): an F test of `losses` [shapes, seeds] for lack of fit."""
    n_shapes, n = losses.shape
    if n_shapes < 3 or n < 2:
        return None
    means = losses.mean(axis=1)
    x = np.log2(np.asarray(n_layers, dtype=np.float64))
    off = means - means.mean() - (slope_weights(n_layers) @ means) * (x - x.mean())
    f = float(off @ off) * n / (n_shapes - 2) / float(noise(losses)) ** 2
    return float(fdtrc(n_shapes - 2, degrees(losses), f))


def seeds_needed(reach: float, sigma: float, weights: FloatArray, more_than: int) -> int | None:
    """How many seeds would show, with a chance of 80 %, that a contrast as it now stands is `reach` away from what it is tested
    against, if `sigma` stays; None beyond a thousand.
    """
    n_shapes = weights.size
    for n in range(max(2, more_than + 1), MOST_SEEDS + 1):
        df = (n_shapes - 1) * (n - 1)
        error = sigma * math.sqrt(float(weights @ weights) / n)
        if (quantile(1 - LEVEL / 2, df) + quantile(POWER, df)) * error <= reach:
            return n
    return None
