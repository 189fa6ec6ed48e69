"""One hash for the weights of a model, so that what was measured of them can be told from what was measured of others."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def hash_weights(model: nn.Module) -> str:
    """sha256 (hex) of the names, types and values of everything that `model` saves."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
