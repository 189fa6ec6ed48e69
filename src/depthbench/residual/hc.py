"""Hyper-Connections [2409.19606]: n residual streams, mixed anew for every token by coefficients that depend on it.

With `u_s = H_s / rms(H_s)` (no gain), the streams before the mix give, for source stream s and target t = 0 … n,

    A[s, t] = A0[s, t] + a·tanh(u_s · Wa)[t]        b_s = b0_s + c·tanh(u_s · wb)
    m_t = Σ_s A[s, t] H_s        y = F(RN(m_0))        H_{t-1} ← m_t + b_{t-1}·y   for t = 1 … n.

At initialisation the network computes what Pre-LN computes with the same weights, output projections divided by sqrt(n) included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthbench.errors import UserError
from depthbench.model.backbone import NORM_EPS, RMSNorm, Sublayer
from depthbench.model.frozen import coefficient
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.residual.hc_mix import mix
from depthbench.residual.protocol import Link, Residual
from depthbench.shape import ModelShape

INITIAL_DYNAMIC_SCALE = 0.01


@dataclass(frozen=True)
class HCOptions:
    """`streams`: n; `dynamic=False`: A0 and b0 alone (static HC); `tanh=False`: the dynamic part is linear."""

    streams: int = 4
    dynamic: bool = True
    tanh: bool = True


def stream_rms(streams_BTnD: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(H_s²) + eps)` of every stream, `[B, T, n, 1]`."""
    return torch.rsqrt(streams_BTnD.square().mean(-1, keepdim=True) + eps)


class HCLink(Link):
    """Width mixing `A` and depth weights `b` of one sublayer. Weight decay spares the static parts alone."""

    no_decay = ("A0", "b0")

    def __init__(self, d_model: int, i: int, options: HCOptions) -> None:
        super().__init__()
        n = options.streams
        self.eps, self.options = NORM_EPS, options
        self.norm = RMSNorm(d_model)
        first = torch.zeros(n, 1)
        first[i % n] = 1.0
        self.A0 = nn.Parameter(torch.cat((first, torch.eye(n)), dim=1))
        self.b0 = nn.Parameter(torch.ones(n))
        if options.dynamic:
            self.Wa = nn.Parameter(torch.zeros(d_model, n + 1))
            self.a = nn.Parameter(torch.tensor(INITIAL_DYNAMIC_SCALE))
            self.wb = nn.Parameter(torch.zeros(d_model))
            self.c = nn.Parameter(torch.tensor(INITIAL_DYNAMIC_SCALE))

    @property
    def W(self) -> Tensor:
        """`Wa` and `wb` side by side, `[d, n+2]`."""
        return torch.cat((self.Wa, self.wb[:, None]), dim=1)

    def coefficients(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """`A` `[B, T, n, n+1]` and `b` `[B, T, n]`, or without the leading dimensions when they are static."""
        if not self.options.dynamic:
            return self.A0, self.b0
        # the norm of u has no gain, so it can be applied to the n+2 products rather than to the d inputs
        z = (state @ self.W) * stream_rms(state, self.eps)
        z = z.tanh() if self.options.tanh else z
        z_A, z_b = torch.split(z, [self.options.streams + 1, 1], dim=-1)
        return coefficient(self.A0 + self.a * z_A), coefficient(self.b0 + self.c * z_b.squeeze(-1))

    def mixed(self, state: Tensor, A: Tensor) -> Tensor:
        """`m_t` for t = 0 … n: `[B, T, n+1, d]`."""
        return A.transpose(-1, -2) @ state

    def read(self, state: Tensor) -> Tensor:
        """`RN(m_0)`."""
        A, _ = self.coefficients(state)
        x: Tensor = self.norm(self.mixed(state, A)[..., 0, :])
        return x

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`H_{t-1} ← m_t + b_{t-1}·y`."""
        A, b = self.coefficients(state)
        return self.mixed(state, A)[..., 1:, :] + b[..., None] * y[..., None, :]

    def stream_map(self, state: Tensor) -> Tensor:
        """Columns 1 … n of `A`, transposed."""
        A, _ = self.coefficients(state)
        batch, context = state.shape[:2]
        return A[..., 1:].transpose(-1, -2).expand(batch, context, -1, -1)

    def forward(self, state: Tensor, sublayer: Sublayer) -> Tensor:
        """As `read` and `write`, with the mix made once, and in training differentiated by hand (see `hc_mix.py`)."""
        with full_precision(state):
            if self.options.dynamic and self.training and torch.is_grad_enabled():
                m_0, m_rest, b = mix(state, self.W, self.A0, self.a, self.b0, self.c, self.eps, self.options.tanh)
            else:
                A, b = self.coefficients(state)
                m_0, m_rest = torch.split(self.mixed(state, A), [1, self.options.streams], dim=-2)
                m_0 = m_0.squeeze(-2)
            x = self.norm(m_0)
        y = sublayer(x)
        with full_precision(state):
            return torch.addcmul(m_rest, b[..., None], at_least_fp32(y)[..., None, :])


class HC(Residual):
    """State: the streams `[B, T, n, d]`, opened as n copies of the embedding and closed by their sum."""

    key = "hc"
    family = "multi-stream"
    equation = "m_t = Σ_s A[s,t]·H_s;  H_t ← m_t + b_t·F(RN(m_0));  A, b = static + 0.01·tanh(normed streams · W)"
    source = "2409.19606"
    Options: ClassVar[type[Any]] = HCOptions

    def __init__(self, shape: ModelShape, options: HCOptions | None = None) -> None:
        super().__init__(shape, options)
        if self.options.streams < 1:
            raise UserError(f"streams must be at least 1, got {self.options.streams}")

    def open(self, embedding: Tensor) -> Tensor:
        """n copies, laid out in full: batched products of a repeated view would run one token at a time on CPU."""
        return embedding[..., None, :].repeat_interleave(self.options.streams, dim=-2)

    def link(self, i: int) -> Link:
        """Sublayer i first reads stream `i mod n`."""
        return HCLink(self.shape.d_model, i, self.options)

    def close(self, state: Tensor) -> Tensor:
        """Sum over the streams."""
        return state.sum(dim=-2)

    def depth_state(self, state: Tensor, reader: Link | None) -> Tensor:
        """The streams side by side, `[B, T, n·d]`."""
        return state.flatten(-2)

    def replace(self, state: Tensor, links: tuple[Link, Link], z: Tensor) -> tuple[Tensor, None]:
        """The streams that `z` has side by side."""
        return z.view(*z.shape[:-1], self.options.streams, self.shape.d_model), None

    def streams(self, state: Tensor) -> Tensor:
        """The state itself."""
        return state

    def weight_scale(self, role: str) -> float:
        """Output projections are divided by `sqrt(n)`."""
        return float(self.options.streams**-0.5) if role in ("o", "down") else 1.0

    def own_parameters(self) -> int:
        """`n(n+1) + n` a sublayer, and `d(n+2) + 2` for the dynamic part."""
        n, d = self.options.streams, self.shape.d_model
        dynamic = d * (n + 2) + 2 if self.options.dynamic else 0
        return int(self.shape.n_sublayers * (n * (n + 1) + n + dynamic))

    def own_flops(self, context: int) -> float:
        """A sublayer: the products with `Wa` and `wb`, the mix, and the weighted addition of `y`."""
        n, d = self.options.streams, self.shape.d_model
        dynamic = 2 * n * d * (n + 2) if self.options.dynamic else 0
        return float(self.shape.n_sublayers * (dynamic + 2 * n * (n + 1) * d + 2 * n * d))

    def state_elements(self) -> int:
        """n streams."""
        return int(self.options.streams * self.shape.d_model)
