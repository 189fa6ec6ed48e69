"""Usefulness: what a block does that the best affine map of its input to its output does not.

The map `z_l → z_{l+1}` is fitted by least squares on some windows, and the block is replaced by it on others. The ridge of 1e-6
lies on all coefficients, the constant included: `(XᵀX + 1e-6·I)⁻¹ XᵀY` with `X = [z_l, 1]`, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from depthbench.diagnose.scores import FloatArray
from depthbench.diagnose.subject import Passes, Place

RIDGE = 1e-6
MEMORY_BYTES = 512 * 2**20  # for the sums of the blocks that are fitted in one pass over the windows


@dataclass(frozen=True)
class Replaced:
    """Mean losses in nats per token: `loss` `[windows]` of the model, `replaced` `[windows, blocks]` with each block an affine
    map.
    """

    loss: FloatArray
    replaced: FloatArray


class AffineMaps:
    """Least-squares maps of some blocks. The sums behind them do not grow with the number of windows."""

    def __init__(self, blocks: range) -> None:
        self.blocks = blocks
        self.inner: dict[int, Tensor] = {}
        self.outer: dict[int, Tensor] = {}

    def add(self, passes: Passes) -> None:
        """Take in the tokens of a clean pass."""
        for block in self.blocks:
            x = _with_one(_state(passes, block))
            y = _state(passes, block + 1).flatten(0, 1)
            x = x.flatten(0, 1)
            inner, outer = x.T @ x, x.T @ y
            self.inner[block] = self.inner[block] + inner if block in self.inner else inner
            self.outer[block] = self.outer[block] + outer if block in self.outer else outer

    def solve(self) -> dict[int, Tensor]:
        """The coefficients of each block, `[D+1, D]`, the constant last."""
        found = {}
        for block in self.blocks:
            inner = self.inner[block]
            ridge = RIDGE * torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
            found[block] = torch.linalg.solve(inner + ridge, self.outer[block])
        return found


def groups(depth: int, width: int) -> list[range]:
    """Blocks whose sums fit into `MEMORY_BYTES` together; `width` is D, that of a depth state."""
    each = 3 * 8 * (width + 1) ** 2
    size = max(1, MEMORY_BYTES // each)
    return [range(start, min(start + size, depth)) for start in range(0, depth, size)]


def replaced(passes: Passes, maps: dict[int, Tensor]) -> Replaced:
    """The loss with each block in turn replaced by its map. Raises `NotImplementedError` if the design cannot replace a block."""
    found = np.empty((len(passes.windows), len(maps)))
    for column, (block, coefficients) in enumerate(maps.items()):
        fit = _with_one(_state(passes, block)) @ coefficients
        place: Place = passes.replaced(block, fit.to(passes.state_dtype))
        for later in range(block + 1, passes.subject.depth):
            place = passes.through(later, place)
        found[:, column] = passes.losses(place).cpu()
    return Replaced(passes.losses(passes.places[-1]).cpu().numpy(), found)


def _state(passes: Passes, block: int) -> Tensor:
    return passes.depth_state(block, passes.places[block])


def _with_one(z: Tensor) -> Tensor:
    return torch.cat((z, z.new_ones(*z.shape[:-1], 1)), dim=-1)
