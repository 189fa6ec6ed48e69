"""The published study's losses at 400M parameters, and how far ours agree with them. Published values are never mixed with ours.

Losses as published at the best learning rate of every configuration, to three decimals and without a spread, so their own noise
is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from depthbench.verdict.pairs import compared_losses, stack
from depthbench.verdict.statistics import FloatArray, draw_means, interval
from depthbench.verdict.summary import Summary
from depthbench.verdict.verdicts import Verdicts

SOURCE = "DepthBench technical report, arXiv 2609.32534, figure 2 as published on its website"
QUANTITY = "validation loss (nats per token) on FineWeb-Edu, about 400M parameters, 8B tokens, best learning rate per configuration"
VOCABULARY = 50_280  # of its tokenizer: losses per token of another one are another quantity
SHAPES = ((16, 1216), (20, 1120), (24, 1024), (28, 960), (32, 896), (42, 800), (70, 640))
LOSSES = {
    "preln": (2.759, 2.759, 2.765, 2.774, 2.782),
    "sandwich": (2.765, 2.754, 2.757, 2.757, 2.766),
    "lns": (2.749, 2.737, 2.740, 2.740, 2.739),
    "deepnorm": (2.790, 2.779, 2.796, 2.792, 2.798),
    "keel": (2.781, 2.768, 2.767, 2.771, 2.775),
    "hc": (2.729, 2.716, 2.702, 2.714, 2.700, 2.691, 2.682),
    "mhc": (2.720, 2.720, 2.710, 2.727, 2.721),
    "attnres": (2.751, 2.728, 2.726, 2.722, 2.718, 2.708, 2.702),
    "attnres_block": (2.734, 2.716, 2.719, 2.726, 2.730),
    "moda": (2.753, 2.746, 2.764, 2.761, 2.780),
}
DEEPEST = 4  # the index of M = 32, the deepest shape published for all designs
FEWEST = 3  # designs whose order can be correlated at all
READABLE = 5


@dataclass(frozen=True)
class PublishedPoint:
    """One published loss."""

    design: str
    n_layers: int
    d_model: int
    loss: float

    @property
    def aspect_ratio(self) -> float:
        """`d_model / n_layers`."""
        return self.d_model / self.n_layers


@dataclass(frozen=True)
class AgreedDesign:
    """A design's depth gain here and as published."""

    label: str
    gain: float
    published_gain: float


@dataclass(frozen=True)
class Agreement:
    """Spearman correlation of depth gains over the designs that both studies have.

    `low` and `high` are a 95 % interval from the noise of our `n` paired seeds alone, None with one seed; `spearman` is None with
    fewer than three designs, or if all gains are equal. `sentence` says what may be read from it.
    """

    designs: tuple[AgreedDesign, ...]
    spearman: float | None
    low: float | None
    high: float | None
    n: int
    sentence: str


def published_points() -> tuple[PublishedPoint, ...]:
    """Every published loss."""
    return tuple(
        PublishedPoint(design, n_layers, d_model, loss)
        for design, losses in LOSSES.items()
        for (n_layers, d_model), loss in zip(SHAPES, losses, strict=False)
    )


def published_gains() -> dict[str, float]:
    """Loss at M = 16 minus loss at M = 32."""
    return {design: round(losses[0] - losses[DEEPEST], 3) for design, losses in LOSSES.items()}


def agreement(summary: Summary, verdicts: Verdicts) -> Agreement | None:
    """How the depth gains of a table agree with the published ones; None if it has no gain of a published design."""
    published = published_gains()
    gains = {design.label: design.gain.value for design in verdicts.designs if design.gain is not None}
    both = tuple(
        AgreedDesign(label, gains[label], published[label]) for label in summary.labels if label in gains and label in published
    )
    if not both:
        return None
    theirs = np.array([design.published_gain for design in both])
    rho = _spearman(np.array([design.gain for design in both]), theirs) if len(both) >= FEWEST else np.array(math.nan)
    found = None if np.isnan(rho) else float(rho)
    losses = compared_losses(summary)
    shared = sorted(set.intersection(*(set(losses[design.label]) for design in both)))
    low = high = None
    if found is not None and len(shared) > 1:
        means = draw_means(np.stack([stack(losses[design.label], shared) for design in both]))
        low, high = interval(_spearman(means[..., 0] - means[..., -1], theirs))
    ends = f"M = {verdicts.compared[0].n_layers} to {verdicts.compared[-1].n_layers}"
    return Agreement(both, found, low, high, len(shared), _sentence(len(both), found, low, high, ends))


def _spearman(ours: FloatArray, theirs: FloatArray) -> FloatArray:
    """Correlation of ranks over the last axis; not a number where all are equal."""
    from scipy.stats import rankdata  # scipy.stats takes long to import

    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (rankdata(ours, axis=-1), rankdata(theirs)))
    size = np.sqrt(np.sum(a**2, axis=-1) * np.sum(b**2))
    rho: FloatArray = np.divide(a @ b, size, out=np.full_like(size, math.nan), where=size > 0)
    return rho


def _sentence(count: int, rho: float | None, low: float | None, high: float | None, ends: str) -> str:
    compared = f"Depth gains here ({ends}) against the published ones (M = 16 to 32)"
    if rho is None:
        why = f"an order needs {FEWEST}" if count < FEWEST else "but no difference among them"
        return f"{compared}: {count} design{'s' if count > 1 else ''} in common, {why}."
    spread = (
        f" (95 % interval {low:+.2f} to {high:+.2f} from our noise alone)" if low is not None else " (one seed, so no interval)"
    )
    text = f"{compared}: Spearman {rho:+.2f} over {count} designs{spread}."
    if count < READABLE:
        return f"{text} Of {count} designs one in {math.factorial(count)} orders agrees by chance alone: too few to read much into."
    return text
