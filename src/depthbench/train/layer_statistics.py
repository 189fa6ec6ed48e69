"""What flows through the layers while a model trains: mean, variance and norm of every block's output, and of its gradient.

A block's output is what `Residual.layer_output` makes of the state after it. Watching it changes nothing of what is computed: sums
are taken on the side, in the updates that are due alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthbench.model.parallel import Alone
from depthbench.model.precision import at_least_fp32
from depthbench.model.transformer import Transformer

NAMES = ("mean", "variance", "norm")


class Glimpse(NamedTuple):
    """Of the numbers that one micro-batch showed: `values` are mean, variance and the sum over tokens of the norm, on the device,
    to be multiplied by `scale` (the variance by its square).
    """

    values: Tensor
    numbers: int
    tokens: int
    scale: float


class LayerStatistics:
    """Watches a model in update 1 and in every update whose number `every` divides; never with 0."""

    def __init__(self, model: Transformer, every: int) -> None:
        self.model, self.every = model, every
        self.seen: dict[tuple[int, bool], list[Glimpse]] = defaultdict(list)

    def is_due(self, step: int) -> bool:
        """Whether update `step`, counted from 1, is watched."""
        return self.every > 0 and (step == 1 or step % self.every == 0)

    @contextmanager
    def watching(self, step: int, weight: float) -> Iterator[None]:
        """Watch the forward and backward pass of a micro-batch of update `step`, if it is due. The loss has been multiplied by
        `weight`; what has none shows rows that others have shown.
        """
        if not self.is_due(step) or not weight:
            yield
            return

        def look(block: int, state: Any) -> None:
            output = self.model.residual.layer_output(state)
            self.seen[block, False].append(_glimpse(output, 1.0))
            if output.requires_grad:
                output.register_hook(lambda gradient: self.seen[block, True].append(_glimpse(gradient, 1 / weight)))  # type: ignore[no-untyped-call]

        self.model.watch = look
        try:
            yield
        finally:
            self.model.watch = None

    def row(self, step: int, sharing: Alone) -> dict[str, Any] | None:
        """What update `step` showed to all processes together, None if it was not due. Forgets it.

        `blocks` has one entry a block: `mean` and `variance` (biased) over all numbers of its output, `norm` the mean over tokens
        of the Euclidean norm, and the same of the gradient of the batch's mean loss, before clipping. What is not finite is None.
        """
        if not self.is_due(step):
            return None
        places = [(block, of_gradient) for block in range(self.model.shape.n_layers) for of_gradient in (False, True)]
        sums = _sums([self.seen[place] for place in places])
        self.seen.clear()
        if sharing.size > 1:
            total = sharing.total(sums.to(self.model.embedding.weight.device))
            assert isinstance(total, Tensor)
            sums = total
        found = [_statistics(*values) for values in sums.tolist()]
        return {
            "step": step,
            "blocks": [
                output | {f"gradient_{name}": value for name, value in gradient.items()}
                for output, gradient in zip(found[::2], found[1::2], strict=True)
            ],
        }


def _glimpse(seen: Tensor, scale: float) -> Glimpse:
    """Of `[B, T, …]`."""
    x = at_least_fp32(seen.detach()).flatten(2)
    variance, mean = torch.var_mean(x, correction=0)
    norm = torch.linalg.vector_norm(x, dim=-1).sum()
    return Glimpse(torch.stack((mean, variance, norm)), x.numel(), x.shape[0] * x.shape[1], scale)


def _sums(seen: list[list[Glimpse]]) -> Tensor:
    """What can be added up, in float64 on the CPU: the sums of numbers, of their squares and of norms, and how many numbers and
    tokens there were, `[places, 5]`.
    """
    found = torch.zeros(len(seen), 5, dtype=torch.float64)
    glimpses = [(place, glimpse) for place, parts in enumerate(seen) for glimpse in parts]
    values = torch.stack([glimpse.values for _, glimpse in glimpses]).cpu().double()  # the device is waited for once
    for (place, (_, n, tokens, scale)), (mean, variance, norm) in zip(glimpses, values.tolist(), strict=True):
        squares = n * scale**2 * (variance + mean**2)
        found[place] += values.new_tensor((n * scale * mean, squares, scale * norm, n, tokens))
    return found


def _statistics(total: float, squares: float, norms: float, numbers: float, tokens: float) -> dict[str, float | None]:
    if not numbers:  # nothing passed here: the output of this block has no gradient
        return dict.fromkeys(NAMES)
    mean = total / numbers
    values = (mean, max(squares / numbers - mean**2, 0.0), norms / tokens)
    return {name: value if math.isfinite(value) else None for name, value in zip(NAMES, values, strict=True)}
