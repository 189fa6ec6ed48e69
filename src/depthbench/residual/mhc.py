"""Manifold-constrained Hyper-Connections [2512.24880]: n streams whose mixing matrix is doubly stochastic.

With `X = vec(H)` (stream 0 first) and `z = (X · phi) / sqrt(mean(X²) + eps)`, in the order pre, post, res,

    h_pre = sigmoid(g_pre·z_pre + b_pre)      h_post = 2·sigmoid(g_post·z_post + b_post)
    R = Sinkhorn(g_res·z_res + b_res)         y = F(RN(Σ_s h_pre[s]·H_s))         H_t ← Σ_s R[t, s]·H_s + h_post[t]·y.

The paper gives the gains' initial value, 0.01, and no other. Ours: phi 0, b_pre +8 at stream i mod n and -8 elsewhere, b_post 0,
b_res 0 on the diagonal and -8 off it, so that R starts near the identity and the streams can part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthbench.model.backbone import NORM_EPS, RMSNorm, Sublayer
from depthbench.model.frozen import coefficient
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.residual.hc import HC
from depthbench.residual.protocol import Link

INITIAL_GAIN = 0.01
INITIAL_BIAS = 8.0
SINKHORN_ROUNDS = 20


@dataclass(frozen=True)
class MHCOptions:
    """`streams`: n."""

    streams: int = 4


def sinkhorn(logits: Tensor, rounds: int = SINKHORN_ROUNDS) -> Tensor:
    """A near doubly stochastic matrix from `[..., t, s]` logits: `rounds` times columns, then rows, in the log domain.

    Rows sum to one up to rounding, columns as far as the rounds converge. Gradients pass through every round.
    """
    for _ in range(rounds):
        logits = logits.log_softmax(dim=-2)
        logits = logits.log_softmax(dim=-1)
    return logits.exp()


class MHCLink(Link):
    """The three constrained mixes of one sublayer. Weight decay spares the biases and gains."""

    no_decay = ("bias", "g_pre", "g_post", "g_res")

    def __init__(self, d_model: int, i: int, options: MHCOptions) -> None:
        super().__init__()
        n = options.streams
        self.eps, self.n = NORM_EPS, n
        self.norm = RMSNorm(d_model)
        self.phi = nn.Parameter(torch.zeros(n * d_model, 2 * n + n * n))
        pre = torch.full((n,), -INITIAL_BIAS)
        pre[i % n] = INITIAL_BIAS
        off_diagonal = INITIAL_BIAS * (torch.eye(n) - 1)
        self.bias = nn.Parameter(torch.cat((pre, torch.zeros(n), off_diagonal.flatten())))
        self.g_pre = nn.Parameter(torch.tensor(INITIAL_GAIN))
        self.g_post = nn.Parameter(torch.tensor(INITIAL_GAIN))
        self.g_res = nn.Parameter(torch.tensor(INITIAL_GAIN))

    def coefficients(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`h_pre` `[B, T, n]`, `h_post` `[B, T, n]` and `R` `[B, T, n, n]`, `R[t, s]` from source s to target t."""
        n = self.n
        x = state.flatten(-2)
        z = (x @ self.phi) * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        pre, post, res = torch.split(z, [n, n, n * n], dim=-1)
        b_pre, b_post, b_res = torch.split(self.bias, [n, n, n * n])
        h_pre = torch.sigmoid(self.g_pre * pre + b_pre)
        h_post = 2 * torch.sigmoid(self.g_post * post + b_post)
        R = sinkhorn((self.g_res * res + b_res).view(*res.shape[:-1], n, n))
        return coefficient(h_pre), coefficient(h_post), coefficient(R)

    def read(self, state: Tensor) -> Tensor:
        """`RN(Σ_s h_pre[s]·H_s)`."""
        h_pre, _, _ = self.coefficients(state)
        return self.input(state, h_pre)

    def input(self, state: Tensor, h_pre: Tensor) -> Tensor:
        """The normed read mix."""
        x: Tensor = self.norm((h_pre[..., None, :] @ state).squeeze(-2))
        return x

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`Σ_s R[t, s]·H_s + h_post[t]·y`."""
        _, h_post, R = self.coefficients(state)
        return torch.addcmul(R @ state, h_post[..., None], y[..., None, :])

    def stream_map(self, state: Tensor) -> Tensor:
        """`R`."""
        return self.coefficients(state)[2]

    def forward(self, state: Tensor, sublayer: Sublayer) -> Tensor:
        """As `read` and `write`, with the coefficients made once."""
        with full_precision(state):
            h_pre, h_post, R = self.coefficients(state)
            x = self.input(state, h_pre)
        y = sublayer(x)
        with full_precision(state):
            return torch.addcmul(R @ state, h_post[..., None], at_least_fp32(y)[..., None, :])


class MHC(HC):
    """State, opening and output scaling as `hc`; closed by the mean over the streams."""

    key = "mhc"
    equation = "H_t ← Σ_s R[t,s]·H_s + h_post[t]·F(RN(Σ_s h_pre[s]·H_s)), R doubly stochastic (20 Sinkhorn rounds)"
    source = "2512.24880"
    Options: ClassVar[type[Any]] = MHCOptions

    def link(self, i: int) -> Link:
        """Sublayer i first reads stream `i mod n`."""
        return MHCLink(self.shape.d_model, i, self.options)

    def close(self, state: Tensor) -> Tensor:
        """Mean over the streams."""
        return state.mean(dim=-2)

    def own_parameters(self) -> int:
        """`n·d·(n²+2n) + n²+2n + 3` a sublayer."""
        n, d = self.options.streams, self.shape.d_model
        return int(self.shape.n_sublayers * (n * d * (n * n + 2 * n) + n * n + 2 * n + 3))

    def own_flops(self, context: int) -> float:
        """A sublayer: the product with phi, the read mix, the stream mix, and the weighted addition of `y`."""
        n, d = self.options.streams, self.shape.d_model
        return float(self.shape.n_sublayers * (2 * n * d * (n * n + 2 * n) + 2 * n * d + 2 * n * n * d + 2 * n * d))
