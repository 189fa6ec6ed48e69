"""LayerNorm Scaling [2502.05795 eq. 12]: `x ← x + F(RN(x) / sqrt(l+1))`, with `l+1` the 1-based number of the block."""

from __future__ import annotations

from torch import Tensor

from depthbench.residual.preln import PreLNLink
from depthbench.residual.protocol import Link, Residual


class LNSLink(PreLNLink):
    """Pre-LN whose norm output shrinks with depth."""

    def __init__(self, d_model: int, factor: float) -> None:
        super().__init__(d_model)
        self.factor = factor  # a Python number: a buffer would be lost when a meta-device model is materialised

    def read(self, state: Tensor) -> Tensor:
        """`RN(x) / sqrt(l+1)`, scaled after the gain."""
        return super().read(state) * self.factor


class LNS(Residual):
    """Both sublayers of a block share its factor; the final norm is not scaled."""

    key = "lns"
    family = "normalisation"
    equation = "x ← x + F(RN(x) / sqrt(l+1)), l+1 = number of the block from 1"
    source = "2502.05795 eq. 12"
    moves_with_block = ("factor",)

    def link(self, i: int) -> Link:
        """One RMSNorm a sublayer."""
        return LNSLink(self.shape.d_model, (i // 2 + 1) ** -0.5)

    def own_parameters(self) -> int:
        """None."""
        return 0
