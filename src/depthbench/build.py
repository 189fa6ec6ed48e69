"""Putting a shape and a design together: `build_model`, and exact parameter counts from a model without storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from depthbench.model.transformer import Transformer
from depthbench.residual.registry import make_residual
from depthbench.shape import ModelShape


def build_model(
    design: str, shape: ModelShape, *, seed: int = 0, device: str | torch.device = "cpu", **options: Any
) -> Transformer:
    """A model of `shape` wired by `design` (a key, `path/to/file.py:Class`, or an entry point), fp32, with its initial weights.

    Args:
        design: one of `depthbench designs`, or a user's own.
        shape: the sizes.
        seed: the initial backbone weights are a function of (seed, parameter name, shape): equal over designs.
        device: where to build; "meta" gives a model without storage, for counting.
        options: the design's options, such as `streams=2` for `hc`.

    Returns:
        `model(tokens_BT) -> logits_BTV`.

    Raises:
        UserError: unknown design or option, or a value that the design refuses.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]), torch.device("meta" if device.type == "meta" else "cpu"):
        torch.manual_seed(seed)  # for parameters that a user's design draws itself
        model = Transformer(shape, make_residual(design, shape, options))
    if device.type == "meta":
        return model
    model.initialise(seed)
    return model.to(device)


@dataclass(frozen=True)
class ParameterCounts:
    """Exact counts of a built model. `design` is what the design has beyond Pre-LN at the same shape; it may lie in the blocks
    or outside them, and is part of `total`. `backbone` is everything but the embedding, the head and the final norm.
    """

    backbone: int
    total: int
    design: int


def count_parameters(design: str, shape: ModelShape, **options: Any) -> ParameterCounts:
    """Count the parameters of a model on the meta device: nothing is allocated."""
    model = build_model(design, shape, device="meta", **options)
    total = sum(parameter.numel() for parameter in model.parameters())
    outside = 2 * shape.vocab_size * shape.d_model + shape.d_model
    return ParameterCounts(total - outside, total, total - shape.total_parameters)
