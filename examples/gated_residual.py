"""A residual design of one's own: Pre-LN, with a learned gate for every channel of what a sublayer adds.

    x ← x + g · F(RN(x)),   g of width d, one for each sublayer

With `initial=1` training starts from Pre-LN itself; with a small value every sublayer is faded in, as LayerScale does
[2103.17239]. To try it beside Pre-LN:

    depthbench run quick --designs preln examples/gated_residual.py:GatedResidual --out runs/gated

docs/own_design.md explains every line.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depthbench import Link, Residual, RMSNorm


@dataclass(frozen=True)
class GateOptions:
    """`initial`: the value at which every gate starts."""

    initial: float = 1.0


class GatedLink(Link):
    """One sublayer: its norm and its gate. Weight decay leaves the gate alone: it would pull it to 0, and the sublayer with it."""

    no_decay = ("gate",)

    def __init__(self, d_model: int, initial: float) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model)
        self.gate = nn.Parameter(torch.full((d_model,), initial))

    def read(self, state: Tensor) -> Tensor:
        """`RN(x)`."""
        return self.norm(state)

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`x + g · y`."""
        return state + self.gate * y


class GatedResidual(Residual):
    """The state is the stream `[B, T, d]`, as `open` and `close` have it by default."""

    equation = "x ← x + g·F(RN(x)), g learned for each channel"
    source = "2103.17239 (LayerScale)"
    Options = GateOptions

    def link(self, i: int) -> Link:
        """A norm and a gate for sublayer `i`."""
        return GatedLink(self.shape.d_model, self.options.initial)

    def own_parameters(self) -> int:
        """A gate of `d` a sublayer."""
        return self.shape.n_sublayers * self.shape.d_model
