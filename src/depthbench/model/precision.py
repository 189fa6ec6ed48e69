"""Which precision what is computed in: bf16 autocast for sublayers, at least fp32 for states, norms, mixing and losses."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """`x` in fp32, or unchanged if it is already that precise: "fp32" here never takes float64 away."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bf16 autocast, or nothing for fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast off: residual states and mixing coefficients stay fp32 while the sublayers run in bf16."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
