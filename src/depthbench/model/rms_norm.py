"""RMSNorm on a CPU, differentiated by hand: PyTorch has a fused kernel for it on other devices, and none here.

x̂ = x / sqrt(mean(x²) + eps)      y = x̂·g      dx = (dy·g - x̂·mean(dy·g·x̂)) / rms(x)      dg = Σ dy·x̂
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        rrms = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * rrms
        ctx.save_for_backward(normed, rrms, gain)
        y: Tensor = normed * gain
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, rrms, gain = ctx.saved_tensors
        product = dy * normed
        mean = (product @ gain).div_(normed.shape[-1]).unsqueeze(-1)
        dx = (dy * gain).addcmul_(normed, mean, value=-1).mul_(rrms)
        return dx, product.flatten(0, -2).sum(0), None


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """`x / sqrt(mean(x²) + eps) · gain` over the last dimension, in the precision of `x`. `gain` is `[width]`."""
    if x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        y: Tensor = _RMSNorm.apply(x, gain, eps)  # type: ignore[no-untyped-call]
        return y
    return F.rms_norm(x, gain.shape, gain, eps)
