"""Sandwich-LN, also called Peri-LN [CogView; 2502.02732]: `x ← x + RN_out(F(RN_in(x)))`.

"Reordered norm", the output norm alone, is another design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from depthbench.model.backbone import RMSNorm
from depthbench.residual.preln import PreLNLink
from depthbench.residual.protocol import Link, Residual
from depthbench.shape import ModelShape


class SandwichLink(PreLNLink):
    """A norm on either side of the sublayer."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.out_norm = RMSNorm(d_model)

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """`x + RN_out(y)`."""
        written: Tensor = state + self.out_norm(y)
        return written


@dataclass(frozen=True)
class SandwichOptions:
    """`embedding_norm`: also norm the embedding before the first block."""

    embedding_norm: bool = False


class Sandwich(Residual):
    """Four norms a block, all gains one at init."""

    key = "sandwich"
    family = "normalisation"
    equation = "x ← x + RN_out(F(RN_in(x)))"
    source = "CogView; 2502.02732"
    Options: ClassVar[type[Any]] = SandwichOptions

    def __init__(self, shape: ModelShape, options: SandwichOptions | None = None) -> None:
        super().__init__(shape, options)
        self.embedding_norm = RMSNorm(self.shape.d_model) if self.options.embedding_norm else nn.Identity()

    def open(self, embedding: Tensor) -> Tensor:
        """The embedding, normed if the option says so."""
        opened: Tensor = self.embedding_norm(embedding)
        return opened

    def link(self, i: int) -> Link:
        """Two RMSNorms a sublayer."""
        return SandwichLink(self.shape.d_model)

    def own_parameters(self) -> int:
        """A gain of `d` a sublayer."""
        return int(self.shape.n_sublayers + self.options.embedding_norm) * self.shape.d_model
