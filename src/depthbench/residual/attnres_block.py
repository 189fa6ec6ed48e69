"""Block Attention Residuals [2603.15031]: the attention of `attnres` over block sums instead of single outputs.

Sublayers are cut into segments. Within a segment a running sum `r ← r + y` grows; after the segment's last sublayer it is sealed
and a new one begins. Sublayer i ≥ 1 attends over the embedding, the sealed sums and `r` (when it is not empty); so does the close.
With one sublayer a segment this is `attnres`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from depthbench.errors import UserError
from depthbench.residual.attnres import AttnRes, MixLink, Source, source
from depthbench.residual.protocol import Link
from depthbench.shape import ModelShape


@dataclass(frozen=True)
class AttnResBlockOptions:
    """`n_blocks`: segments to cut the sublayers into; `block_size`: sublayers a segment, given instead (0: not given);
    `scale`: divide the logits by `sqrt(d)`.
    """

    n_blocks: int = 4
    block_size: int = 0
    scale: bool = False


class BlockState(NamedTuple):
    """The embedding and the sealed sums, and the running sum unless it is empty."""

    sealed: tuple[Source, ...]
    running: Source | None

    @property
    def sources(self) -> Sequence[Source]:
        """All sources, oldest first; the running sum is the newest."""
        return self.sealed if self.running is None else (*self.sealed, self.running)


class AttnResBlockLink(MixLink):
    """Adds to the running sum and seals it at the end of a segment."""

    def __init__(self, d_model: int, i: int, scale: bool, block_size: int) -> None:
        super().__init__(d_model, i, scale)
        self.seals = (i + 1) % block_size == 0

    def sources(self, state: BlockState) -> Sequence[Source]:
        """Embedding, sealed sums, running sum."""
        return state.sources

    def write(self, state: BlockState, y: Tensor) -> BlockState:
        """`r ← r + y`, sealed if this is the segment's last sublayer."""
        total = source(y if state.running is None else state.running.value + y, self.eps)
        return BlockState((*state.sealed, total), None) if self.seals else BlockState(state.sealed, total)


class AttnResBlock(AttnRes):
    """State: sealed sums and a running sum. The default of 4 segments matches the dead quarter that was published at M = 32;
    the original work recommends about 8.
    """

    key = "attnres_block"
    equation = "x_i = softmax mix over [embedding, sealed segment sums, running sum r];  r ← r + F(RN(x_i))"
    Options: ClassVar[type[Any]] = AttnResBlockOptions

    def __init__(self, shape: ModelShape, options: AttnResBlockOptions | None = None) -> None:
        super().__init__(shape, options)
        if self.options.block_size < 0 or (self.options.block_size == 0 and self.options.n_blocks < 1):
            raise UserError(
                f"n_blocks and block_size must be at least 1, got {self.options.n_blocks} and {self.options.block_size}"
            )

    @property
    def block_size(self) -> int:
        """Sublayers a segment, `ceil(2M / n_blocks)` unless given; the last segment may be shorter."""
        return int(self.options.block_size) or math.ceil(self.shape.n_sublayers / self.options.n_blocks)

    def open(self, embedding: Tensor) -> BlockState:
        """The embedding counts as sealed."""
        return BlockState((source(embedding, self.eps),), None)

    def link(self, i: int) -> Link:
        """A query and a key gain for every sublayer but the first."""
        return AttnResBlockLink(self.shape.d_model, i, self.options.scale, self.block_size)

    def close(self, state: BlockState) -> Tensor:
        """One more mix over the sealed sums and a partial last one."""
        hidden: Tensor = self.mix(state.sources)
        return hidden

    def sources(self, state: BlockState) -> Sequence[Source]:
        """Embedding, sealed sums, running sum."""
        return state.sources

    def after_nothing(self, state: BlockState, links: tuple[Link, Link]) -> BlockState:
        """Segments end where they always do; an empty sum is not sealed."""
        for link in links:
            if isinstance(link, AttnResBlockLink) and link.seals and state.running is not None:
                state = BlockState((*state.sealed, state.running), None)
        return state

    def n_sources(self, i: int) -> int:
        """Sources that sublayer i reads from (i = 2M: the close)."""
        sealed, partial = divmod(i, self.block_size)
        return 1 + sealed + (partial > 0)

    def own_flops(self, context: int) -> float:
        """As `attnres`, over fewer sources."""
        return 4.0 * self.shape.d_model * sum(self.n_sources(i) for i in range(1, self.shape.n_sublayers + 1))

    def state_elements(self) -> int:
        """The sources at the close, with their norms."""
        return self.n_sources(self.shape.n_sublayers) * (self.shape.d_model + 1)
