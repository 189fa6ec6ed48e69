"""Path weights: how much of every sublayer's output is in the input of every later sublayer, and in what the model closes with.

With mixing coefficients and norm statistics held fixed, the way from an output v_j to an input x_i is a linear map `W_ij` of each
token by itself, and its weight is `trace(W_ij) / d`. The trace is the mean of `r · (W_ijᵀ r)` over vectors r of random signs;
where the map is diagonal, as in all designs here, one such vector gives it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.diagnose.ours import OurPasses
from depthbench.diagnose.scores import FloatArray
from depthbench.model.backbone import AttentionSublayer, Heads, LayerNorm, RMSNorm, Sublayer
from depthbench.model.frozen import frozen_coefficients
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.residual.protocol import Link

NORMS = (RMSNorm, LayerNorm, nn.RMSNorm, nn.LayerNorm)
SIGNS_SEED = 0


def path_weights(passes: OurPasses) -> FloatArray:
    """`[windows, 2M+1, 2M+1]`: row i is the input of sublayer i before its norm, the last row the close; column 0 is the embedding,
    column j+1 the raw output of sublayer j. NaN where the output comes after the input. Means over tokens.
    """
    model = passes.subject.model
    with torch.enable_grad(), frozen_coefficients():
        embedding = model.embedding(passes.windows).detach().requires_grad_()
        sources, inputs = [embedding], []
        with full_precision(embedding):
            state: Any = model.residual.open(embedding)
        for block in passes.subject.blocks:
            for side, link in enumerate((block.attention_link, block.mlp_link)):
                with _watched(link) as cut:
                    state = link(state, _CutMLP(block.mlp, cut) if side else _CutAttention(block.attention, passes.rope, cut))
                sources.append(cut.output)
                inputs.append(cut.input)
        with full_precision(embedding):
            inputs.append(model.residual.close(state))
        return _weights(sources, inputs)


def _weights(sources: list[Tensor], inputs: list[Tensor]) -> FloatArray:
    first = sources[0]
    generator = torch.Generator().manual_seed(SIGNS_SEED)
    signs = (torch.randint(2, (first.shape[-1],), generator=generator) * 2 - 1).to(first)
    found = np.full((len(first), len(inputs), len(sources)), math.nan)
    for i, x in enumerate(inputs):
        before = sources[: i + 1]
        gradients = torch.autograd.grad(x, before, signs.expand_as(x), retain_graph=True, allow_unused=True)
        for j, gradient in enumerate(gradients):
            weight = 0.0 if gradient is None else (gradient.double() * signs.double()).mean(-1).mean(-1).cpu()
            found[:, i, j] = weight
    return found


class _Cut:
    """Where a sublayer's inside is cut out: what goes in, before the norm, and what comes out, as a new variable."""

    def __init__(self) -> None:
        self.normed: list[Tensor] = []  # inputs of the norms of the link, as they are called
        self.input: Tensor
        self.output: Tensor

    def enter(self, x: Tensor) -> None:
        """The sublayer takes `x`: the output of the last norm before it, if there was one."""
        self.input = self.normed[-1] if self.normed else x

    def leave(self, y: Tensor) -> Tensor:
        """What the sublayer puts out."""
        self.output = at_least_fp32(y).detach().requires_grad_()
        return self.output


@dataclass(frozen=True)
class _CutMLP:
    mlp: Sublayer
    cut: _Cut

    def __call__(self, x: Tensor, /) -> Tensor:
        self.cut.enter(x)
        with torch.no_grad():
            y = self.mlp(x)
        return self.cut.leave(y)


@dataclass(frozen=True)
class _CutAttention(AttentionSublayer):
    """A design may take attention apart."""

    cut: _Cut

    def __call__(self, x: Tensor, /) -> Tensor:
        return self.attend(self.heads(x))

    def heads(self, x: Tensor) -> Heads:
        self.cut.enter(x)
        with torch.no_grad():
            return super().heads(x)

    def attend(self, heads: Heads, own_keys: Sequence[Tensor] = (), own_values: Sequence[Tensor] = ()) -> Tensor:
        with torch.no_grad():
            y = super().attend(heads, own_keys, own_values)
        return self.cut.leave(y)


@contextmanager
def _watched(link: Link) -> Iterator[_Cut]:
    """A cut that knows what the norms of `link` are called with."""
    cut = _Cut()

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        cut.normed.append(args[0])

    hooks = [module.register_forward_pre_hook(note) for module in link.modules() if isinstance(module, NORMS)]
    try:
        yield cut
    finally:
        for hook in hooks:
            hook.remove()
