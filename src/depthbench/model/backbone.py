"""The parts every design shares: RMSNorm, rotary positions, grouped-query attention and SwiGLU. None of them knows a design.

Shape suffixes: B batch, T positions, D d_model, H query heads, K key-value heads, G query heads a key-value head (H = K·G),
C head_dim, F d_ff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthbench.model.frozen import are_frozen, coefficient
from depthbench.model.precision import at_least_fp32
from depthbench.model.rms_norm import rms_norm
from depthbench.shape import ModelShape

NORM_EPS = 1e-6
ROPE_THETA = 10_000.0


class Sublayer(Protocol):
    """The bare function of a sublayer, without norm or residual: `[B, T, D]` to `[B, T, D]`."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Apply the sublayer."""
        ...


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) · gain` over the last dimension, computed in fp32 or better. `gain` is `[width]`, ones at init."""

    def __init__(self, width: int, eps: float = NORM_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to the same shape, fp32 or better: whoever multiplies it next chooses the precision."""
        x = at_least_fp32(x)
        if are_frozen():
            return x * coefficient(torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)) * self.gain
        return rms_norm(x, self.gain, self.eps)


class LayerNorm(nn.Module):
    """Mean-centred norm with a gain and no bias (biased variance), computed in fp32 or better."""

    def __init__(self, width: int, eps: float = NORM_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., width]` to the same shape."""
        x = at_least_fp32(x)
        if are_frozen():
            variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
            return (x - coefficient(mean)) * coefficient(torch.rsqrt(variance + self.eps)) * self.gain
        return F.layer_norm(x, self.gain.shape, self.gain, None, self.eps)


class Rope(NamedTuple):
    """The rotation of every position: cosines and sines `[T, C]`."""

    cos_TC: Tensor
    sin_TC: Tensor

    def rotate(self, x_BHTC: Tensor) -> Tensor:
        """Turn each pair (k, k + C/2) of a head by its position's angle."""
        left, right = x_BHTC.chunk(2, dim=-1)
        turned = x_BHTC * self.cos_TC + torch.cat((-right, left), dim=-1) * self.sin_TC
        return turned.to(x_BHTC.dtype)


def rope_table(length: int, head_dim: int, *, like: Tensor, theta: float = ROPE_THETA) -> Rope:
    """Rotations of positions 0 … length-1 on the device of `like`, in its precision or fp32.

    Made anew for each pass rather than kept as a buffer: a buffer would be lost when a meta-device model is materialised, and
    would keep fp32 angles in a model turned to float64.
    """
    dtype = at_least_fp32(like[:0]).dtype
    exponent = torch.arange(0, head_dim, 2, device=like.device, dtype=dtype) / head_dim
    angle = torch.arange(length, device=like.device, dtype=dtype)[:, None] * theta**-exponent
    angle = torch.cat((angle, angle), dim=-1)
    return Rope(angle.cos(), angle.sin())


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values before rotary positions, side by side as one projection made them: `[B, H+2K, T, C]`."""

    qkv_BNTC: Tensor
    n_heads: int
    n_kv_heads: int

    @property
    def k_BKTC(self) -> Tensor:
        """Keys, not rotated."""
        return self.qkv_BNTC[:, self.n_heads : self.n_heads + self.n_kv_heads]

    @property
    def v_BKTC(self) -> Tensor:
        """Values."""
        return self.qkv_BNTC[:, self.n_heads + self.n_kv_heads :]

    def rotated(self, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, turned together, and values."""
        qk_BNTC, v_BKTC = torch.split(self.qkv_BNTC, [self.n_heads + self.n_kv_heads, self.n_kv_heads], dim=1)
        q_BHTC, k_BKTC = torch.split(rope.rotate(qk_BNTC), [self.n_heads, self.n_kv_heads], dim=1)
        return q_BHTC, k_BKTC, v_BKTC


class KeyValues:
    """The rotated keys and the values of the positions so far, `[B, K, S, C]`, when a sequence is read piece by piece."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extended(self, k_BKTC: Tensor, v_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        """Take in those of the next positions. Returns all, `[B, K, S+T, C]`."""
        self.keys = k_BKTC if self.keys is None else torch.cat((self.keys, k_BKTC), dim=2)
        self.values = v_BKTC if self.values is None else torch.cat((self.values, v_BKTC), dim=2)
        return self.keys, self.values


class Attention(nn.Module):
    """Causal softmax attention, `1/sqrt(head_dim)` scale, grouped key-value heads, no biases."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = shape.n_heads, shape.n_kv_heads, shape.head_dim
        self.q = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.k = nn.Linear(shape.d_model, shape.kv_width, bias=False)
        self.v = nn.Linear(shape.d_model, shape.kv_width, bias=False)
        self.o = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor, rope: Rope) -> Tensor:
        """Plain causal attention, `[B, T, D]` to `[B, T, D]`."""
        return self.attend(self.heads(x_BTD), rope)

    def heads(self, x_BTD: Tensor) -> Heads:
        """The queries, keys and values of `x`, before rotary positions."""

        # three maps of one input are one product: fewer and wider, and one gradient of the input instead of a sum of three
        qkv = F.linear(x_BTD, torch.cat((self.q.weight, self.k.weight, self.v.weight)))
        qkv_BNTC = qkv.view(*qkv.shape[:-1], -1, self.head_dim).transpose(1, 2)
        return Heads(qkv_BNTC, self.n_heads, self.n_kv_heads)

    def attend(
        self,
        heads: Heads,
        rope: Rope,
        own_keys: Sequence[Tensor] = (),
        own_values: Sequence[Tensor] = (),
        past: KeyValues | None = None,
    ) -> Tensor:
        """Attend to earlier positions and, in the same softmax, to extra slots that belong to the query's own position.

        `own_keys` and `own_values` hold one `[B, K, T, C]` a slot; position t sees row t of each and no rotation is applied to
        them. `past` holds the positions before these T, and takes these in. Returns `[B, T, D]`.
        """
        q_BHTC, k_BKTC, v_BKTC = heads.rotated(rope)
        if past is not None:
            k_BKTC, v_BKTC = past.extended(k_BKTC, v_BKTC)
        if own_keys:
            y_BHTC = joint_attention(q_BHTC, k_BKTC, v_BKTC, own_keys, own_values)
        else:
            grouped = self.n_kv_heads != self.n_heads
            seen_TS = None if past is None else ~future(q_BHTC, k_BKTC)
            y_BHTC = F.scaled_dot_product_attention(
                q_BHTC, k_BKTC, v_BKTC, attn_mask=seen_TS, is_causal=seen_TS is None, enable_gqa=grouped
            )
        out: Tensor = self.o(y_BHTC.transpose(1, 2).flatten(2))
        return out


def future(q_BHTC: Tensor, k_BKSC: Tensor) -> Tensor:
    """Which of S positions lie beyond each of the last T, `[T, S]`."""
    length, seen = q_BHTC.shape[2], k_BKSC.shape[2]
    return torch.ones(length, seen, dtype=torch.bool, device=q_BHTC.device).triu(1 + seen - length)


def joint_attention(
    q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, own_keys: Sequence[Tensor], own_values: Sequence[Tensor]
) -> Tensor:
    """One softmax over the causal positions, the queries at the last, and the query's own slots. Returns `[B, H, T, C]`."""
    n_heads, n_kv_heads, length = q_BHTC.shape[1], k_BKTC.shape[1], k_BKTC.shape[2]
    q_BKGTC = q_BHTC.reshape(-1, n_kv_heads, n_heads // n_kv_heads, *q_BHTC.shape[2:]) * q_BHTC.shape[-1] ** -0.5
    sequence_BKGTT = at_least_fp32(q_BKGTC @ k_BKTC.unsqueeze(2).transpose(-1, -2))
    own_BKGT1 = [at_least_fp32((q_BKGTC * k.unsqueeze(2)).sum(-1, keepdim=True)) for k in own_keys]
    logits = torch.cat((sequence_BKGTT.masked_fill(future(q_BHTC, k_BKTC), float("-inf")), *own_BKGT1), dim=-1)
    p = logits.softmax(-1).to(v_BKTC.dtype)
    y_BKGTC = p[..., :length] @ v_BKTC.unsqueeze(2)
    for slot, v in enumerate(own_values):
        y_BKGTC = torch.addcmul(y_BKGTC, p[..., length + slot, None], v.unsqueeze(2))
    return y_BKGTC.flatten(1, 2)


@dataclass(frozen=True)
class AttentionSublayer:
    """An attention sublayer bound to the positions of one pass. Called, it attends; a design that needs more takes it apart."""

    attention: Attention
    rope: Rope

    def __call__(self, x: Tensor, /) -> Tensor:
        """Plain causal attention of `x`, `[B, T, D]` to `[B, T, D]`."""
        y: Tensor = self.attention(x, self.rope)
        return y

    def heads(self, x: Tensor) -> Heads:
        """Queries, keys and values before rotary positions."""
        return self.attention.heads(x)

    def attend(self, heads: Heads, own_keys: Sequence[Tensor] = (), own_values: Sequence[Tensor] = ()) -> Tensor:
        """Attention with extra keys and values for each position's own use (see `Attention.attend`)."""
        return self.attention.attend(heads, self.rope, own_keys, own_values)


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) · up(x))`, no biases."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.up = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.down = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, T, D]`."""
        y: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y
