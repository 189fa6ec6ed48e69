"""Full Attention Residuals as their equations read at first sight: every sublayer stacks all sources and norms them all.

A peer for the benchmarks, never a design to train with: each sublayer keeps copies of everything before it for backward, so memory
grows with the square of the depth. Parameters have the names, and the network the outputs, of `attnres`. It is a user's
design like any other: `build_model("benchmarks/stacked_attnres.py:StackedAttnRes", shape)`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthbench import Link, ModelShape, Residual
from depthbench.model.backbone import NORM_EPS, RMSNorm

Sources = tuple[Tensor, ...]


class StackedMix(nn.Module):
    """The softmax mix over stacked sources, `[S, B, T, d]`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(d_model))
        self.key_gain = nn.Parameter(torch.ones(d_model))

    def forward(self, sources: Sources) -> Tensor:
        """`Σ_s softmax_s(q · RN(v_s)) v_s`, `[B, T, d]`."""
        v_SBTD = torch.stack(sources)
        k_SBTD = F.rms_norm(v_SBTD, self.key_gain.shape, self.key_gain, NORM_EPS)
        p_SBT = torch.einsum("d,sbtd->sbt", self.query, k_SBTD).softmax(0)
        return torch.einsum("sbt,sbtd->btd", p_SBT, v_SBTD)


class StackedLink(Link):
    """The state is the tuple of sources; sublayer 0 reads the embedding."""

    def __init__(self, d_model: int, i: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model)
        self.mix = StackedMix(d_model) if i > 0 else None

    def read(self, state: Sources) -> Tensor:
        """`RN(h_i)`."""
        return self.norm(state[0] if self.mix is None else self.mix(state))

    def write(self, state: Sources, y: Tensor) -> Sources:
        """`y` becomes the newest source."""
        return (*state, y)


class StackedAttnRes(Residual):
    """`attnres` with a stack in every sublayer."""

    key = "stacked_attnres"
    state_grows = True

    def __init__(self, shape: ModelShape, options: Any = None) -> None:
        super().__init__(shape, options)
        self.mix = StackedMix(shape.d_model)

    def open(self, embedding: Tensor) -> Sources:
        """The embedding as the only source."""
        return (embedding,)

    def link(self, i: int) -> Link:
        """A query and a key gain for every sublayer but the first."""
        return StackedLink(self.shape.d_model, i)

    def close(self, state: Sources) -> Tensor:
        """One more mix over all sources."""
        return self.mix(state)

    def state_elements(self) -> int:
        """All sources, once the last sublayer has written."""
        return (self.shape.n_sublayers + 1) * self.shape.d_model
