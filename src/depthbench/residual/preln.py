"""Pre-LN, the baseline [2502.05795 eq. 2-3]: `x ← x + F(RN(x))`."""

from __future__ import annotations

from torch import Tensor

from depthbench.model.backbone import RMSNorm
from depthbench.residual.protocol import Link, Residual


class PreLNLink(Link):
    """Norm before the sublayer, plain addition after it."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model)

    def read(self, state: Tensor) -> Tensor:
        """`RN(x)`."""
        normed: Tensor = self.norm(state)
        return normed

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`x + y`."""
        return state + y


class PreLN(Residual):
    """Two norms a block; the stream itself is never normed before the final norm."""

    key = "preln"
    family = "baseline"
    equation = "x ← x + F(RN(x))"
    source = "2502.05795 eq. 2-3"

    def link(self, i: int) -> Link:
        """One RMSNorm a sublayer."""
        return PreLNLink(self.shape.d_model)

    def own_parameters(self) -> int:
        """None beyond itself."""
        return 0
