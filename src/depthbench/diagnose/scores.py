"""Angular distance, causal score, pruning and permutation score, one value a window, so that windows can be resampled.

Indices are those of depth states for angular distance, 0 … M, and of blocks otherwise, 0 … M-1, rows before columns. What a
definition leaves out is NaN. Nothing before the first changed block is computed again, and changed passes go through a block
together where that makes batches of a good size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench.diagnose.subject import Passes, Place, joined, parted
from depthbench.residual.protocol import tensors_of

SMALLEST = 1e-8  # of a norm that divides
TOGETHER_TOKENS = 1024  # in a batch of changed passes; fewer leave a processor idle, more fall out of its caches
FloatArray = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Skips:
    """What leaving out block s does.

    To the update of block l > s, each `[windows, M, M]` by (s, l): `ratio` is the mean over tokens of `‖u' - u‖ / ‖u‖`
    [2505.13898]; `change` and `size` are the means of numerator and denominator, for the ratio of means; `largest` is the largest
    ratio of a token. To the loss, in nats per token: `loss` `[windows]` of the model, `pruned` `[windows, M]` without block s.
    """

    ratio: FloatArray
    change: FloatArray
    size: FloatArray
    largest: FloatArray
    loss: FloatArray
    pruned: FloatArray


@dataclass(frozen=True)
class Swaps:
    """Mean losses in nats per token: `loss` `[windows]` of the model, `swapped` `[windows, M, M]` with blocks i < j exchanged."""

    loss: FloatArray
    swapped: FloatArray


def angular(passes: Passes) -> FloatArray:
    """`[windows, M+1, M+1]`: mean over tokens of `arccos(cos(z_i, z_j)) / π` for i < j [2403.17887].

    A zero vector is at 0.5 from any other, and at 0 from another zero vector.
    """
    states = passes.clean_states()
    lengths = [z.norm(dim=-1) for z in states]
    found = np.full((len(passes.windows), len(states), len(states)), math.nan)
    for i, first in enumerate(states):
        for j in range(i + 1, len(states)):
            product = lengths[i] * lengths[j]
            cosine = ((first * states[j]).sum(-1) / product).clamp(-1, 1)
            cosine = torch.where(product > 0, cosine, ((lengths[i] == 0) & (lengths[j] == 0)).double())
            found[:, i, j] = (cosine.arccos() / math.pi).mean(dim=1).cpu()
    return found


def skips(passes: Passes, rule: str = "", together: int = TOGETHER_TOKENS) -> Skips:
    """Every block left out; `rule` is one of the subject's `skip_rules`, "" for the published one."""
    rule, depth = passes.subject.check_rule(rule), passes.subject.depth
    clean = passes.clean_states()
    updates = [after - before for before, after in pairwise(clean)]
    sizes = [update.norm(dim=-1) for update in updates]
    rows = len(passes.windows)
    ratio, change, size, largest = (np.full((rows, depth, depth), math.nan) for _ in range(4))
    loss = passes.losses(passes.places[-1]).cpu().numpy()
    found = Skips(ratio, change, size, largest, loss, np.full((rows, depth), math.nan))
    for group in _groups(range(depth), passes, together):
        going: dict[int, Place] = {}
        before: dict[int, Tensor] = {}
        for block in range(group[0], depth):
            going = _advance(passes, block, going)
            for s, place in going.items():
                after = passes.depth_state(block + 1, place)
                change = (after - before[s] - updates[block]).norm(dim=-1)
                ratio = change / sizes[block].clamp_min(SMALLEST)
                found.ratio[:, s, block] = ratio.mean(1).cpu()
                found.change[:, s, block] = change.mean(1).cpu()
                found.size[:, s, block] = sizes[block].mean(1).cpu()
                found.largest[:, s, block] = ratio.amax(1).cpu()
                before[s] = after
            if block in group:
                going[block] = passes.skipping(block, rule)
                before[block] = passes.depth_state(block + 1, going[block])
        losses = passes.losses_of(torch.cat([passes.end(going[s]) for s in group]))
        found.pruned[:, group] = losses.view(len(group), rows).T.cpu()
    return found


def swaps(passes: Passes, together: int = TOGETHER_TOKENS) -> Swaps:
    """Every two blocks exchanged."""
    subject, depth, rows = passes.subject, passes.subject.depth, len(passes.windows)
    touched = [subject.touched(block) for block in range(depth)]
    found = np.full((rows, depth, depth), math.nan)
    for i in range(depth):
        for group in _groups(range(i + 1, depth), passes, together):
            going = dict.fromkeys(group, passes.places[i])
            for block in range(i, depth):
                changed = {j for j in group if block in touched[i] | touched[j]}
                going |= _advance(passes, block, {j: place for j, place in going.items() if j not in changed})
                for j in changed:
                    with subject.swapped(i, j):
                        going[j] = passes.through(block, going[j])
            ends = []
            for j in group:
                with subject.swapped(i, j):  # the close may belong to a block
                    ends.append(passes.end(going[j]))
            found[:, i, group] = passes.losses_of(torch.cat(ends)).view(len(group), rows).T.cpu()
    return Swaps(passes.losses(passes.places[-1]).cpu().numpy(), found)


def _groups(changes: Iterable[int], passes: Passes, together: int) -> list[list[int]]:
    """Consecutive changes whose passes make up a batch of `together` tokens, or one at a time."""
    size = max(1, together // passes.windows.numel())
    all_of_them = list(changes)
    return [all_of_them[start : start + size] for start in range(0, len(all_of_them), size)]


def _advance(passes: Passes, block: int, places: dict[Key, Place]) -> dict[Key, Place]:
    """All places through a block, those that are alike together."""
    alike: dict[Any, list[Key]] = {}
    for key, place in places.items():
        alike.setdefault((place.given is None, tuple(part.shape for part in tensors_of(place.state))), []).append(key)
    found: dict[Key, Place] = {}
    for keys in alike.values():
        after = passes.through(block, joined([places[key] for key in keys]))
        found |= dict(zip(keys, parted(after, len(keys)), strict=True))
    return {key: found[key] for key in places}
