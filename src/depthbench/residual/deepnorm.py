"""DeepNorm [2203.00555]: `x ← LN(alpha·x + F(x))`, with the decoder-only constants.

`alpha = (2M)^(1/4)`; `beta = (8M)^(-1/4)` multiplies the initial values of `W_v`, `W_o` and the three feed-forward matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from depthbench.model.backbone import LayerNorm, RMSNorm
from depthbench.residual.protocol import Link, Residual


@dataclass(frozen=True)
class DeepNormOptions:
    """`norm`: "layer", a true LayerNorm (mean-centred, gain, no bias), or "rms"."""

    norm: Literal["layer", "rms"] = "layer"


class DeepNormLink(Link):
    """No norm before the sublayer; the weighted sum is normed after it."""

    def __init__(self, d_model: int, alpha: float, norm: str) -> None:
        super().__init__()
        self.alpha = alpha
        self.norm = LayerNorm(d_model) if norm == "layer" else RMSNorm(d_model)

    def read(self, state: Tensor) -> Tensor:
        """The stream as it is."""
        return state

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`LN(alpha·x + y)`."""
        normed: Tensor = self.norm(y.add(state, alpha=self.alpha))
        return normed


class DeepNorm(Residual):
    """Post-norm made trainable by weighting the stream and shrinking the initial weights."""

    key = "deepnorm"
    family = "normalisation"
    equation = "x ← LN(alpha·x + F(x)), alpha = (2M)^(1/4); initial v, o, gate, up, down × beta = (8M)^(-1/4)"
    source = "2203.00555"
    Options: ClassVar[type[Any]] = DeepNormOptions

    @property
    def alpha(self) -> float:
        """`(2M)^(1/4)`."""
        return float((2 * self.shape.n_layers) ** 0.25)

    @property
    def beta(self) -> float:
        """`(8M)^(-1/4)`."""
        return float((8 * self.shape.n_layers) ** -0.25)

    def link(self, i: int) -> Link:
        """One LayerNorm a sublayer."""
        return DeepNormLink(self.shape.d_model, self.alpha, self.options.norm)

    def weight_scale(self, role: str) -> float:
        """`beta` for everything but queries and keys."""
        return 1.0 if role in ("q", "k") else self.beta

    def own_parameters(self) -> int:
        """None: its norm has a gain alone, as Pre-LN's."""
        return 0
