"""Loss against parameters: the fit of a power law, and how far its numbers may be trusted.

With four tiers or more `L(N) = E + A·(N/N0)^-alpha`, by least squares over E ≥ 0, A ≥ 0 and alpha; with fewer, which three free
numbers would only thread, `L(N) = A·(N/N0)^-alpha`, a line in the logarithms. N0 is the geometric mean of the tiers, so that A is a
loss at a size that was trained.
"""

from __future__ import annotations

import math

import numpy as np

from depthbench.verdict.statistics import FloatArray, draw_means, noise

TIERS_FOR_FLOOR = 4
WITH_FLOOR, WITHOUT_FLOOR = "E + A·N^-alpha", "A·N^-alpha"
DRAWS = 1000
ALPHAS = np.geomspace(0.01, 4.0, 100)
LEAST_LOSS = 1e-3  # nats; a draw from the tails of a t distribution may be below zero


def fit(parameters: FloatArray, losses: FloatArray) -> FloatArray:
    """(E, A, alpha) [..., 3] of the law through `losses` [..., tiers] at `parameters` [tiers]; E is 0 with fewer than 4 tiers."""
    x = parameters / reference(parameters)
    if parameters.size >= TIERS_FOR_FLOOR:
        rows = losses.reshape(-1, parameters.size)
        coarse = _best(x, rows, np.broadcast_to(ALPHAS, (len(rows), ALPHAS.size)))
        steps = np.linspace(-1, 1, 41) * math.log(ALPHAS[1] / ALPHAS[0])
        fine = _best(x, rows, np.clip(coarse[:, 2:] * np.exp(steps), ALPHAS[0], ALPHAS[-1]))
        return fine.reshape(*losses.shape[:-1], 3)
    logs, at = np.log(np.maximum(losses, LEAST_LOSS)), np.log(x)
    alpha = -(logs @ at) / (at @ at)  # the logarithms of x sum to zero
    return np.stack([np.zeros_like(alpha), np.exp(logs.mean(axis=-1)), alpha], axis=-1)


def reference(parameters: FloatArray) -> float:
    """N0: the geometric mean."""
    return float(np.exp(np.log(parameters).mean()))


def at_edge(alpha: float) -> bool:
    """Whether alpha is the smallest or the largest that is looked at, so that the tiers do not determine it."""
    return bool(alpha <= 1.001 * ALPHAS[0] or alpha >= 0.999 * ALPHAS[-1])


def evaluate(fits: FloatArray, ratio: float | FloatArray) -> FloatArray:
    """The law's losses for (E, A, alpha) [..., 3] at `ratio` = N/N0."""
    found: FloatArray = fits[..., 0] + fits[..., 1] * ratio ** -fits[..., 2]
    return found


def draw_fits(parameters: FloatArray, losses: FloatArray) -> FloatArray:
    """Fits [draws, 3] to means as they might have been, from `losses` [tiers, seeds] with two seeds or more.

    Beside the noise of every tier, a draw has an effect of its seeds that all tiers share, as large as the residuals say.
    """
    n_tiers, n = losses.shape
    rng = np.random.default_rng(1)
    between = float(losses.mean(axis=0).var(ddof=1))
    shared = math.sqrt(max(0.0, between - float(noise(losses)) ** 2 / n_tiers) / n)
    shift = shared * rng.standard_t(n - 1, size=(DRAWS, 1))
    return fit(parameters, draw_means(losses[None], DRAWS)[:, 0] + shift)


def left_over(parameters: FloatArray, means: FloatArray) -> float | None:
    """Root mean square of what the law leaves of the `means` [tiers], by degrees of freedom; None if it threads them."""
    free = parameters.size - (3 if parameters.size >= TIERS_FOR_FLOOR else 2)
    if free < 1:
        return None
    found = fit(parameters, means)
    off = means - evaluate(found, parameters / reference(parameters))
    return math.sqrt(float(off @ off) / free)


def _best(x: FloatArray, losses: FloatArray, alphas: FloatArray) -> FloatArray:
    """The (E, A, alpha) [rows, 3] with the least squares, for `losses` [rows, tiers] over `alphas` [rows, tried]."""
    powers = x ** -alphas[..., None]  # rows, tried, tiers
    means = losses.mean(axis=1)[:, None]
    centred = powers - powers.mean(axis=2, keepdims=True)
    slope = np.maximum(0, np.einsum("rat,rt->ra", centred, losses) / np.sum(centred**2, axis=2))
    floor = means - slope * powers.mean(axis=2)
    without = np.einsum("rat,rt->ra", powers, losses) / np.sum(powers**2, axis=2)
    slope, floor = np.where(floor < 0, without, slope), np.maximum(floor, 0)
    squares = np.sum((losses[:, None] - floor[..., None] - slope[..., None] * powers) ** 2, axis=2)
    at = np.argmin(squares, axis=1)[:, None]
    return np.concatenate([np.take_along_axis(values, at, axis=1) for values in (floor, slope, alphas)], axis=1)
