"""Mixture-of-Depths Attention [2603.15619]: Pre-LN, and attention that also reads the keys and values of earlier blocks.

Each block appends two slots to its token's depth cache: the K and V of its attention, before rotary positions, and a pair that a
bias-free projection makes of the feed-forward's normed input; the last block needs no such projection. The attention of block l is
one softmax over the causal positions (rotated) and the 2l depth slots of the same token (query rotated, depth keys not).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from depthbench.model.backbone import AttentionSublayer, RMSNorm, Sublayer
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.residual.protocol import Link, Residual
from depthbench.shape import ModelShape


class MoDAState(NamedTuple):
    """The stream `[B, T, d]` and the depth cache: one `[B, K, T, C]` a slot, `K` key-value heads of width `C`."""

    x: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class MoDALink(Link):
    """Pre-LN on the stream; the cache passes through."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model)

    def read(self, state: MoDAState) -> Tensor:
        """`RN(x)`."""
        x: Tensor = self.norm(state.x)
        return x

    def write(self, state: MoDAState, y: Tensor) -> MoDAState:
        """`x + y`."""
        return state._replace(x=state.x + y)


class MoDAAttentionLink(MoDALink):
    """Hands attention the depth cache, and appends its keys and values."""

    def forward(self, state: MoDAState, sublayer: Sublayer) -> MoDAState:
        """Joint attention over positions and depth."""
        if not isinstance(sublayer, AttentionSublayer):
            raise TypeError("MoDA wires this link to an attention sublayer")
        with full_precision(state.x):
            x = self.read(state)
        heads = sublayer.heads(x)
        y = sublayer.attend(heads, state.keys, state.values)
        with full_precision(state.x):
            state = self.write(state, at_least_fp32(y))
        return state._replace(keys=(*state.keys, heads.k_BKTC), values=(*state.values, heads.v_BKTC))


class MoDAFeedForwardLink(MoDALink):
    """Appends a key and a value made of the feed-forward's normed input."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape.d_model)
        self.n_kv_heads, self.head_dim = shape.n_kv_heads, shape.head_dim
        self.kv = nn.Linear(shape.d_model, 2 * shape.kv_width, bias=False)

    def forward(self, state: MoDAState, sublayer: Sublayer) -> MoDAState:
        """Pre-LN, and one more slot."""
        with full_precision(state.x):
            x = self.read(state)
        k, v = self.kv(x).view(*x.shape[:-1], 2, self.n_kv_heads, self.head_dim).movedim(-3, 0).transpose(-3, -2)
        y = sublayer(x)
        with full_precision(state.x):
            state = self.write(state, at_least_fp32(y))
        return state._replace(keys=(*state.keys, k), values=(*state.values, v))


class MoDA(Residual):
    """State: the stream and the depth cache of each token. Budgets should count its projections: 11–14 % at 400M."""

    key = "moda"
    family = "cross-layer"
    equation = "x ← x + F(RN(x)); attention of block l: one softmax over causal K, V and the token's own 2l depth slots"
    source = "2603.15619"
    state_grows = True

    def open(self, embedding: Tensor) -> MoDAState:
        """The embedding and an empty cache."""
        return MoDAState(embedding, (), ())

    def link(self, i: int) -> Link:
        """Attention reads and fills the cache; every feed-forward but the last fills it."""
        if i % 2 == 0:
            return MoDAAttentionLink(self.shape.d_model)
        if i < self.shape.n_sublayers - 1:
            return MoDAFeedForwardLink(self.shape)
        return MoDALink(self.shape.d_model)

    def close(self, state: MoDAState) -> Tensor:
        """The stream."""
        return state.x

    def skip(self, state: MoDAState, links: tuple[Link, Link], rule: str) -> tuple[MoDAState, None]:
        """The stream as it was, and two slots of zeros, which stay in the softmax with logit 0."""
        batch, context, _ = state.x.shape
        slot = state.x.new_zeros(batch, self.shape.n_kv_heads, context, self.shape.head_dim)
        return state._replace(keys=(*state.keys, slot, slot), values=(*state.values, slot, slot)), None

    def replace(self, state: MoDAState, links: tuple[Link, Link], z: Tensor) -> tuple[MoDAState, None]:
        """`z` as the stream, and the slots of a skipped block."""
        after, _ = self.skip(state, links, self.skip_rules[0])
        return after._replace(x=z), None

    def own_parameters(self) -> int:
        """`(M-1)·d·2·H_kv·head_dim`."""
        return (self.shape.n_layers - 1) * self.shape.d_model * 2 * self.shape.kv_width

    def own_flops(self, context: int) -> float:
        """The projections, and for 2l slots in block l a logit and a weighted sum over all query heads."""
        slots = sum(2 * block for block in range(self.shape.n_layers))
        return 2.0 * self.own_parameters() + 4.0 * self.shape.d_model * slots

    def state_elements(self) -> int:
        """The stream, and a key and a value for each of the 2M-1 slots."""
        return self.shape.d_model + (self.shape.n_sublayers - 1) * 2 * self.shape.kv_width
