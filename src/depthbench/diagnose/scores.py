"""Angular distance, causal score and permutation score, one value a window, so that windows can be resampled.

Indices are those of depth states for angular distance, 0 … M, and of blocks otherwise, 0 … M-1. What a definition leaves out is
NaN. Norms, cosines and sums are in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench.diagnose.passes import Passes, check_rule, swapped
from depthbench.model.transformer import Transformer

SMALLEST = 1e-8  # of a norm that divides
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Causal:
    """What skipping block s does to the update of block l > s, each `[windows, M, M]` by (s, l).

    `ratio` is the mean over tokens of `‖u' - u‖ / ‖u‖` [2505.13898]; `change` and `size` are the means of numerator and
    denominator, for the ratio of means; `largest` is the largest ratio of a token.
    """

    ratio: FloatArray
    change: FloatArray
    size: FloatArray
    largest: FloatArray


@dataclass(frozen=True)
class Permutation:
    """Mean losses in nats per token: `loss` `[windows]` of the model, `swapped` `[windows, M, M]` with blocks i < j exchanged."""

    loss: FloatArray
    swapped: FloatArray

    def score(self) -> FloatArray:
        """`|loss(swapped) - loss| / loss`, `[M, M]`, over all windows [2603.15389]."""
        whole = self.loss.mean()
        found: FloatArray = np.abs(self.swapped.mean(axis=0) - whole) / whole
        return found


@torch.no_grad()
def angular(model: Transformer, windows: Tensor) -> FloatArray:
    """`[windows, M+1, M+1]`: mean over tokens of `arccos(cos(z_i, z_j)) / π` for i < j [2403.17887].

    A zero vector is at 0.5 from any other, and at 0 from another zero vector.
    """
    states = Passes(model, windows).clean_states()
    lengths = [z.norm(dim=-1) for z in states]
    found = np.full((len(windows), len(states), len(states)), math.nan)
    for i, first in enumerate(states):
        for j in range(i + 1, len(states)):
            product = lengths[i] * lengths[j]
            cosine = ((first * states[j]).sum(-1) / product).clamp(-1, 1)
            cosine = torch.where(product > 0, cosine, ((lengths[i] == 0) & (lengths[j] == 0)).double())
            found[:, i, j] = (cosine.arccos() / math.pi).mean(dim=1).cpu()
    return found


@torch.no_grad()
def causal(model: Transformer, windows: Tensor, skip: str = "") -> Causal:
    """Causal score of every pair of blocks; `skip` is one of the design's `skip_rules`, "" for the published one."""
    rule = check_rule(model, skip)
    passes = Passes(model, windows)
    clean = passes.clean_states()
    updates = [after - before for before, after in pairwise(clean)]
    sizes = [update.norm(dim=-1) for update in updates]
    empty = np.full((len(windows), passes.depth, passes.depth), math.nan)
    found = Causal(*(empty.copy() for _ in range(4)))
    for s in range(passes.depth - 1):
        place = passes.skipping(s, rule)
        before = passes.depth_state(s + 1, place)
        for block in range(s + 1, passes.depth):
            place = passes.through(block, place)
            after = passes.depth_state(block + 1, place)
            change = (after - before - updates[block]).norm(dim=-1)
            ratio = change / sizes[block].clamp_min(SMALLEST)
            for values, array in (
                (ratio.mean(1), found.ratio),
                (change.mean(1), found.change),
                (sizes[block].mean(1), found.size),
                (ratio.amax(1), found.largest),
            ):
                array[:, s, block] = values.cpu()
            before = after
    return found


@torch.no_grad()
def permutation(model: Transformer, windows: Tensor) -> Permutation:
    """Losses with every two blocks exchanged."""
    passes = Passes(model, windows)
    loss = passes.losses(passes.places[-1]).cpu().numpy()
    found = np.full((len(windows), passes.depth, passes.depth), math.nan)
    for i in range(passes.depth):
        for j in range(i + 1, passes.depth):
            with swapped(model, i, j):
                place = passes.places[i]
                for block in range(i, passes.depth):
                    place = passes.through(block, place)
                found[:, i, j] = passes.losses(place).cpu()
    return Permutation(loss, found)
