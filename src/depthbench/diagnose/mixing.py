"""Why the derived variants fail: what becomes of parallel streams, and of the running sum of Block AttnRes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthbench.diagnose.ours import OurPasses
from depthbench.diagnose.scores import FloatArray
from depthbench.model.backbone import AttentionSublayer
from depthbench.model.precision import full_precision
from depthbench.residual.attnres import MixLink
from depthbench.residual.attnres_block import AttnResBlock, BlockState
from depthbench.residual.protocol import Link

DEAD = 0.1  # a running sum with less weight than this adds nothing


@dataclass(frozen=True)
class Streams:
    """Means over tokens. `effective_rank` `[windows, M]` of the product of all stream maps up to and with block l: exp of the
    entropy of its singular values, divided by their sum; `spectrum` `[windows, M, n]` those shares, largest first; `overlap`
    `[windows, M+1]` the mean `|cos|` over the pairs of streams of z_l.
    """

    effective_rank: FloatArray
    spectrum: FloatArray
    overlap: FloatArray


def has_streams(passes: OurPasses) -> bool:
    """Whether the design has parallel streams."""
    streams = passes.residual.streams(passes.places[0].state)
    return streams is not None and streams.shape[-2] > 1


def streams(passes: OurPasses) -> Streams:
    """How the maps of the streams compose, and how alike the streams are."""
    depth, rows = passes.subject.depth, len(passes.windows)
    product: Tensor | None = None
    ranks, spectra = [], []
    with full_precision(passes.windows.new_empty(0, dtype=torch.float32)):
        for i, link, state in _before_sublayers(passes):
            here = link.stream_map(state)
            if here is None:
                raise NotImplementedError("a design with streams says how they carry over: Link.stream_map")
            product = here.double() if product is None else here.double() @ product
            if i % 2:
                shares = singular_shares(product)
                spectra.append(shares.mean(1).cpu().numpy())
                ranks.append(effective_rank(shares).mean(1).cpu().numpy())
        overlaps = [overlap(passes.residual.streams(place.state)).mean(1).cpu().numpy() for place in passes.places]
    found = Streams(np.stack(ranks, 1), np.stack(spectra, 1), np.stack(overlaps, 1))
    assert found.effective_rank.shape == (rows, depth)
    return found


def singular_shares(maps: Tensor) -> Tensor:
    """`[…, n, n]` to its singular values divided by their sum, `[…, n]`, largest first."""
    values: Tensor = torch.linalg.svdvals(maps)
    return values / values.sum(-1, keepdim=True)


def effective_rank(shares: Tensor) -> Tensor:
    """`[…, n]` to `exp(-Σ p log p)`, `[…]`."""
    rank: Tensor = torch.special.entr(shares).sum(-1).exp()
    return rank


def overlap(streams_BTnD: Tensor | None) -> Tensor:
    """Mean `|cos|` over the pairs of streams, `[B, T]`."""
    assert streams_BTnD is not None
    streams = streams_BTnD.double()
    unit = streams / streams.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    cosine = (unit @ unit.transpose(-1, -2)).abs()
    pairs = list(itertools.combinations(range(cosine.shape[-1]), 2))
    a, b = (torch.tensor(side, device=cosine.device) for side in zip(*pairs, strict=True))
    found: Tensor = cosine[..., a, b].mean(-1)
    return found


def running_weights(passes: OurPasses) -> FloatArray:
    """`[windows, 2M+1]`: the weight that each mix of `attnres_block` gives the running sum, mean over tokens; the last is the
    close. NaN where the sum is empty, and for sublayer 0, which has no mix.
    """
    residual = passes.residual
    assert isinstance(residual, AttnResBlock)
    found = np.full((len(passes.windows), 2 * passes.subject.depth + 1), math.nan)
    with full_precision(passes.windows.new_empty(0, dtype=torch.float32)):
        end = (2 * passes.subject.depth, None, passes.places[-1].state)
        for i, link, state in itertools.chain(_before_sublayers(passes), [end]):
            mix = link.mix if isinstance(link, MixLink) else residual.mix
            if isinstance(state, BlockState) and state.running is not None and mix is not None:
                found[:, i] = mix.weights(state.sources)[..., -1].double().mean(1).cpu()
    return found


def dead_segment(weights: FloatArray, block_size: int, below: float = DEAD) -> int:
    """The largest k such that every mix of blocks 0 … k-1 before the first seal gives the running sum less than `below`; `weights`
    `[2M+1]` are means, `block_size` the sublayers of a segment.
    """
    dead = 0
    for block in range(math.ceil(block_size / 2)):
        mixes = [weights[i] for i in (2 * block, 2 * block + 1) if 0 < i < min(block_size, len(weights))]
        if not mixes or not all(weight < below for weight in mixes):
            break
        dead = block + 1
    return dead


def _before_sublayers(passes: OurPasses) -> Iterator[tuple[int, Link, Any]]:
    """Every sublayer's number and link, with the state before it, on the clean pass."""
    for block, parts in enumerate(passes.subject.blocks):
        state = passes.places[block].state
        yield 2 * block, parts.attention_link, state
        yield 2 * block + 1, parts.mlp_link, parts.attention_link(state, AttentionSublayer(parts.attention, passes.rope))
