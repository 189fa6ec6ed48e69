"""Path weights: how much of every sublayer's output is in the input of every later sublayer, and in what the model closes with.

With mixing coefficients and norm statistics held fixed, the way from an output v_j to an input x_i is a linear map `W_ij` of each
token by itself, and its weight is `trace(W_ij) / d`. The trace is the mean of `r · (W_ijᵀ r)` over vectors r of random signs;
where the map is diagonal, as in all designs here, one such vector gives it exactly.

That the map is linear is checked: its derivative must not change with the outputs. A design whose mixing coefficients depend on the
state, and that does not pass them through `frozen.coefficient`, is found out by a second derivative.
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


@dataclass(frozen=True)
class Paths:
    """`weight` `[windows, 2M+1, 2M+1]`: row i is the input of sublayer i before its norm, the last row the close; column 0 is the
    embedding, column j+1 the raw output of sublayer j. NaN where the output comes after the input. Means over tokens.

    `deviation` `[windows]`: how much the derivatives of the inputs by the outputs change, relative to themselves and to first
    order, if the outputs change by vectors of their own size. 0 if the inputs are linear in the outputs; NaN if the design cannot
    be differentiated twice.
    """

    weight: FloatArray
    deviation: FloatArray


def paths(passes: OurPasses) -> Paths:
    """What the residual connection alone carries from every sublayer's output to every later input."""
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
        return Paths(_weights(sources, inputs), _deviation(sources, inputs))


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


def _deviation(sources: list[Tensor], inputs: list[Tensor]) -> FloatArray:
    """See `Paths`; all inputs at once, each seen through a vector of random signs."""
    generator = torch.Generator().manual_seed(SIGNS_SEED + 1)

    def signs(like: Tensor) -> Tensor:
        return (torch.randint(2, (like.shape[-1],), generator=generator) * 2 - 1).to(like)

    seen = [(x * signs(x)).sum() for x in inputs]
    try:
        slopes = torch.autograd.grad(torch.stack(seen).sum(), sources, create_graph=True, allow_unused=True)
        moved = [
            (slope * signs(source) * source.detach().square().mean(-1, keepdim=True).sqrt()).sum()
            for slope, source in zip(slopes, sources, strict=True)
            if slope is not None and slope.requires_grad
        ]
        changes = torch.autograd.grad(torch.stack(moved).sum(), sources, allow_unused=True) if moved else ()
    except RuntimeError as error:
        if "differentiate" not in str(error) and "derivative" not in str(error):
            raise
        return np.full(len(sources[0]), math.nan)
    return _norm(changes, sources[0]) / np.maximum(_norm(slopes, sources[0]), np.finfo(np.float64).tiny)


def _norm(parts: Sequence[Tensor | None], like: Tensor) -> FloatArray:
    """Of all parts together, for every row."""
    squares = [part.detach().double().square().flatten(1).sum(1) for part in parts if part is not None]
    found: Tensor = torch.stack([like.new_zeros(len(like), dtype=torch.float64), *squares]).sum(0).sqrt()
    return found.cpu().numpy()


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
