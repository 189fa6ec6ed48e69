"""Training pass of the mix of Hyper-Connections: what `HCLink.coefficients` and `HCLink.mixed` define, differentiated by hand.

Automatic differentiation makes about twice the passes over the streams that the derivative needs. With `r = 1/rms(H)`,
`z = r·(H·W)`, `t = tanh(z)` (or z), `A = A0 + a·t_A`, `b = b0 + c·t_b`, `m = Aᵀ·H`:

    dA = H·dmᵀ      dz = [a·dA, c·db]·t'      dH = A·dm + (r·dz)·Wᵀ - (Σ dz·z)·r²·H/d      dW = Hᵀ·(r·dz)

Shape suffixes: P positions (batch × time), n streams, D d_model; W is `[D, n+2]`, the columns of Wa and then wb.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, H_PnD: Tensor, W: Tensor, A0: Tensor, a: Tensor, b0: Tensor, c: Tensor, eps: float, tanh: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        n, width = H_PnD.shape[1:]
        square = torch.linalg.vector_norm(H_PnD, dim=-1, keepdim=True).square_()
        r_Pn1 = square.div_(width).add_(eps).rsqrt_()
        # few columns: a matrix product is several times faster with them as rows
        z = (W.T.contiguous() @ H_PnD.view(-1, width).T).T.contiguous().view(-1, n, n + 2).mul_(r_Pn1)
        t = z.tanh() if tanh else z
        A_Pst = torch.addcmul(A0, a, t[..., :-1])
        b_Pn = torch.addcmul(b0, c, t[..., -1])
        m = torch.bmm(A_Pst.transpose(1, 2), H_PnD)
        ctx.save_for_backward(H_PnD, W, a, c, r_Pn1, z, t, A_Pst)
        ctx.tanh = tanh
        return m[:, 0], m[:, 1:], b_Pn

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dm_0: Tensor, dm_rest: Tensor, db_Pn: Tensor) -> tuple[Tensor | None, ...]:
        H_PnD, W, a, c, r_Pn1, z, t, A_Pst = ctx.saved_tensors
        width = H_PnD.shape[-1]
        dm = torch.cat((dm_0.unsqueeze(1), dm_rest), dim=1)
        dA = torch.bmm(H_PnD, dm.transpose(1, 2))
        da, dc = (dA * t[..., :-1]).sum(), (db_Pn * t[..., -1]).sum()
        dz = torch.cat((dA * a, (db_Pn * c).unsqueeze(-1)), dim=-1)
        if ctx.tanh:
            dz.addcmul_(dz, t.square(), value=-1)  # times 1 - t²
        radial_Pn1 = (dz * z).sum(-1, keepdim=True).mul_(r_Pn1.square()).div_(width)
        dz = dz.mul_(r_Pn1).view(-1, W.shape[1])
        dH = torch.bmm(A_Pst, dm)
        dH.view(-1, width).addmm_(dz, W.T)
        dH.addcmul_(H_PnD, radial_Pn1, value=-1)
        dW = (dz.T @ H_PnD.view(-1, width)).T
        return dH, dW, dA.sum(0), da, db_Pn.sum(0), dc, None, None


def mix(
    state: Tensor, W: Tensor, A0: Tensor, a: Tensor, b0: Tensor, c: Tensor, eps: float, tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """From the streams `[B, T, n, d]`: `m_0` `[B, T, d]`, `m_1 … m_n` `[B, T, n, d]` and `b` `[B, T, n]`."""
    lead = state.shape[:-2]
    m_0, m_rest, b = _Mix.apply(state.flatten(0, -3).contiguous(), W, A0, a, b0, c, eps, tanh)  # type: ignore[no-untyped-call]
    return m_0.view(*lead, -1), m_rest.view(*lead, *m_rest.shape[1:]), b.view(*lead, -1)
