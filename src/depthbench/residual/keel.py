"""KEEL [2601.19895]: `x ← RN_post(alpha·x + F(RN_in(x)))`, `alpha = 2M`, the number of sublayers.

At the bottom the first attention sublayer is plain Pre-LN, and the first feed-forward has `alpha = 1` and keeps its post-norm.
Needs a larger learning rate than Pre-LN.
"""

from __future__ import annotations

from torch import Tensor

from depthbench.model.backbone import RMSNorm
from depthbench.residual.preln import PreLNLink
from depthbench.residual.protocol import Link, Residual


class KeelLink(PreLNLink):
    """A norm before the sublayer, and one over the weighted sum after it."""

    def __init__(self, d_model: int, alpha: float) -> None:
        super().__init__(d_model)
        self.alpha = alpha
        self.post_norm = RMSNorm(d_model)

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`RN_post(alpha·x + y)`."""
        normed: Tensor = self.post_norm(y.add(state, alpha=self.alpha))
        return normed


class Keel(Residual):
    """Four norms a block, three in block 0."""

    key = "keel"
    family = "normalisation"
    equation = "x ← RN_post(alpha·x + F(RN_in(x))), alpha = 2M; sublayer 0 is Pre-LN, sublayer 1 has alpha = 1"
    source = "2601.19895"

    def link(self, i: int) -> Link:
        """Pre-LN for sublayer 0, two norms for the others."""
        if i == 0:
            return PreLNLink(self.shape.d_model)
        return KeelLink(self.shape.d_model, alpha=1.0 if i == 1 else float(self.shape.n_sublayers))

    def own_parameters(self) -> int:
        """A gain of `d` for every sublayer but the first."""
        return (self.shape.n_sublayers - 1) * self.shape.d_model
