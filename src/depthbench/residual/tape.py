"""Training pass of Full Attention Residuals: what `attnres.py` defines, at the memory traffic the mathematics needs.

Automatic differentiation of the definition runs about a dozen small operations for every pair of a source and a reader. Here all
sources lie in one append-only buffer, a mix is a few operations over a slab of it, and

- since a query does not depend on the input, one product gives the logits of a new source for all its later readers;
- the gradient of a source collects in one buffer, as the readers are differentiated last to first, and what goes through its logits
  is added by one product when its own turn comes.

With `l = r·(v·w)`, `r = 1/rms(v)`, `p = softmax(l)`, `h = Σ p v`: `dv = Σ_readers p·dh + dl·(r·w - l·r²·v/d)`, `dw = Σ dl·r·v`,
`dl = p·(v·dh - Σ p·(v·dh))`.

The buffers change in place behind autograd's back, so the functions are ordered by a token that each takes and passes on, and a
pass may be differentiated once. `attnres.py` uses it in training mode alone.

Shape suffixes: N sources (2M+1), R readers (2M: sublayers 1 … 2M-1 and the close), P positions (batch × time), D d_model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Tape:
    """The sources of one pass, their logits for every reader, and in the backward pass their gradients."""

    def __init__(self, embedding: Tensor, probes_RD: Tensor, eps: float) -> None:
        n_readers, width = probes_RD.shape
        positions = embedding.numel() // width
        self.shape, self.eps = embedding.shape, eps
        self.probes_RD = probes_RD.detach()
        self.values_NPD = embedding.new_empty(n_readers + 1, positions, width)
        self.rrms_NP = embedding.new_empty(n_readers + 1, positions)
        self.logits_RNP = embedding.new_empty(n_readers, n_readers + 1, positions)
        self.grad_NPD = self.radial_NP = self.grad_probes_RD = torch.empty(0)

    def append(self, j: int, value: Tensor) -> None:
        """Source j, with its logits for readers that come after it (reader index i-1 belongs to sublayer i ≥ 1)."""
        value_PD, first = self.values_NPD[j], max(j - 1, 0)
        value_PD.copy_(value.reshape(value_PD.shape))
        self.rrms_NP[j] = torch.rsqrt(value_PD.square().mean(-1) + self.eps)
        self.logits_RNP[first:, j] = (self.probes_RD[first:] @ value_PD.T).mul_(self.rrms_NP[j])

    def read(self, i: int) -> tuple[Tensor, Tensor]:
        """The mix `[P, D]` that sublayer i reads (i = 2M: the close), and its weights `[i+1, P]`."""
        p_nP = self.logits_RNP[i - 1, : i + 1].softmax(0)
        mixed_PD = self.values_NPD[0] * p_nP[0, :, None]
        for value_PD, p_P in zip(self.values_NPD[1 : i + 1], p_nP[1:], strict=True):
            mixed_PD.addcmul_(value_PD, p_P[:, None])
        return mixed_PD, p_nP

    def differentiate_read(self, i: int, p_nP: Tensor, grad_PD: Tensor) -> None:
        """Pass the gradient of a mix to the sources' values, and keep that of its logits for their turn."""
        if not self.grad_NPD.numel():
            self.grad_NPD = torch.zeros_like(self.values_NPD)
            self.radial_NP = torch.zeros_like(self.rrms_NP)
            self.grad_probes_RD = torch.zeros_like(self.probes_RD)
        n = i + 1
        dp_nP = torch.stack([torch.linalg.vecdot(value_PD, grad_PD) for value_PD in self.values_NPD[:n]])
        dl_nP = p_nP * (dp_nP - (p_nP * dp_nP).sum(0))
        self.grad_NPD[:n].addcmul_(p_nP.unsqueeze(-1), grad_PD)
        logits_nP = self.logits_RNP[i - 1, :n]
        self.radial_NP[:n].addcmul_(dl_nP, logits_nP)
        torch.mul(dl_nP, self.rrms_NP[:n], out=logits_nP)  # the logits are not needed again: dl·r takes their place

    def differentiate_append(self, j: int) -> Tensor:
        """The whole gradient of source j, after all its readers: `[P, D]`."""
        first, value_PD = max(j - 1, 0), self.values_NPD[j]
        through_logits_RP = self.logits_RNP[first:, j]
        self.grad_probes_RD[first:].addmm_(through_logits_RP, value_PD)
        grad_PD = self.grad_NPD[j].addmm_(through_logits_RP.T, self.probes_RD[first:])
        radial_P = self.radial_NP[j] * self.rrms_NP[j].square() / value_PD.shape[-1]
        return grad_PD.addcmul_(value_PD, radial_P[:, None], value=-1)


class _Open(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, probes_RD: Tensor, tape: Tape) -> Tensor:
        tape.append(0, embedding)
        ctx.tape = tape
        # .data has a version counter of its own: autograd holds (and counts) the buffers without minding their changes
        ctx.save_for_backward(tape.values_NPD.data, tape.logits_RNP.data)
        return embedding.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor, Tensor, None]:
        tape: Tape = ctx.tape
        return tape.differentiate_append(0).view(tape.shape), tape.grad_probes_RD, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, tape: Tape, i: int) -> tuple[Tensor, Tensor]:
        mixed_PD, p_nP = tape.read(i)
        ctx.tape, ctx.i = tape, i
        ctx.save_for_backward(p_nP)
        return mixed_PD.view(tape.shape), token.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, token: Tensor) -> tuple[Tensor, None, None]:
        (p_nP,) = ctx.saved_tensors
        ctx.tape.differentiate_read(ctx.i, p_nP, grad.reshape(p_nP.shape[1], -1))
        return token, None, None


class _Append(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, value: Tensor, tape: Tape, j: int) -> Tensor:
        tape.append(j, value)
        ctx.tape, ctx.j = tape, j
        return token.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Tensor, Tensor, None, None]:
        tape: Tape = ctx.tape
        return token, tape.differentiate_append(ctx.j).view(tape.shape), None, None


class TapeState:
    """The state of a training pass: the tape, the token that orders what is done with it, and the newest source."""

    def __init__(self, embedding: Tensor, probes_RD: Tensor, eps: float) -> None:
        self.embedding = self.newest = embedding
        self.tape = Tape(embedding, probes_RD, eps)
        self.token: Tensor = _Open.apply(embedding, probes_RD, self.tape)  # type: ignore[no-untyped-call]

    def read(self, i: int) -> Tensor:
        """The mix that sublayer i ≥ 1 (or the close, i = 2M) reads, `[B, T, D]`."""
        mixed: Tensor
        mixed, self.token = _Read.apply(self.token, self.tape, i)  # type: ignore[no-untyped-call]
        return mixed

    def append(self, i: int, y: Tensor) -> None:
        """The output of sublayer i becomes source i+1."""
        self.newest = y
        self.token = _Append.apply(self.token, y, self.tape, i + 1)  # type: ignore[no-untyped-call]
