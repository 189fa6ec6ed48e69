"""Validation loss over fixed windows: one mean over tokens, in nats per token and bits per byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from depthbench.data.batches import TokenData, validation_batches
from depthbench.model.parallel import ALONE, Alone
from depthbench.model.precision import at_least_fp32, autocast
from depthbench.model.transformer import Transformer


@dataclass(frozen=True)
class Validation:
    """Nats per token and bits per byte over `tokens` predicted tokens of `n_bytes` UTF-8 bytes (EOS counts no byte)."""

    loss: float
    bits_per_byte: float
    tokens: int
    n_bytes: int


@torch.no_grad()
def validate(
    model: Transformer, data: TokenData, *, n_windows: int, batch_size: int, precision: str, sharing: Alone = ALONE
) -> Validation:
    """Mean loss over the first `n_windows` validation windows (0: all), summed in float64. Processes that share a run call it
    together and take the batches in turns.
    """
    device = next(model.parameters()).device
    total, tokens, n_bytes = 0.0, 0.0, 0.0
    was_training = model.training
    model.eval()
    batches = validation_batches(data, context=model.shape.context, batch_size=batch_size, n_windows=n_windows or None)
    for (inputs, targets), weight in sharing.deal(iter(batches)):
        with autocast(device, precision):
            logits = model(torch.from_numpy(inputs).to(device))
        wanted = torch.from_numpy(targets).to(device)
        losses = F.cross_entropy(at_least_fp32(logits).flatten(0, 1), wanted.flatten(), reduction="none")
        if weight:
            total += float(losses.cpu().double().sum())
            tokens += targets.size
            n_bytes += data.bytes_of(targets)
    model.train(was_training)
    total, tokens, n_bytes = (float(sharing.total(value)) for value in (total, tokens, n_bytes))
    return Validation(total / tokens, total / (math.log(2) * max(n_bytes, 1)), int(tokens), int(n_bytes))
