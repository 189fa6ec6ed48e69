"""Forward passes that are remembered block by block, and passes that begin in the middle of a remembered one.

What comes before the first changed block is never computed again: a changed pass starts from the clean state there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.backbone import AttentionSublayer, Rope, rope_table
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.model.transformer import Block, Transformer
from depthbench.residual.protocol import Link


@dataclass(frozen=True)
class Place:
    """Where a pass stands, before a block or the close: the design's state, and what is taken in place of the next read, if
    anything is (after a skipped block; see `Residual.skip`).
    """

    state: Any
    given: Tensor | None = None


class Passes:
    """Passes of one model over one batch of windows `[B, T]`, without gradients. `places[l]` is the clean pass before block l, and
    `places[M]` before the close.
    """

    def __init__(self, model: Transformer, windows: Tensor) -> None:
        self.model, self.windows = model, windows
        self.blocks = [block for block in model.blocks if isinstance(block, Block)]
        self.links: list[tuple[Link, Link]] = [(block.attention_link, block.mlp_link) for block in self.blocks]
        embedding: Tensor = model.embedding(windows)
        self.rope: Rope = rope_table(windows.shape[1], model.shape.head_dim, like=embedding)
        with full_precision(embedding):
            place = Place(model.residual.open(embedding))
        self.places = [place]
        for block in range(self.depth):
            self.places.append(self.through(block, self.places[-1]))

    @property
    def depth(self) -> int:
        """The number of blocks, M."""
        return len(self.blocks)

    def through(self, block: int, place: Place) -> Place:
        """A block, from the place before it to the one after."""
        parts = self.blocks[block]
        if place.given is None:
            return Place(parts(place.state, self.rope))
        attention = AttentionSublayer(parts.attention, self.rope)
        with full_precision(place.given):
            x = parts.attention_link.take(place.given)
        y = attention(x)
        with full_precision(place.given):
            state = parts.attention_link.write(place.state, at_least_fp32(y))
        return Place(parts.mlp_link(state, parts.mlp))

    def skipping(self, block: int, rule: str) -> Place:
        """The place after `block`, which is left out of the clean pass."""
        before = self.places[block].state
        with full_precision(self.windows.new_empty(0, dtype=torch.float32)):
            return Place(*self.model.residual.skip(before, self.links[block], rule))

    def depth_state(self, block: int, place: Place) -> Tensor:
        """`z_block`, `[B, T, D]` in float64."""
        if place.given is not None:
            return place.given.double()
        reader = self.links[block][0] if block < self.depth else None
        with full_precision(self.windows.new_empty(0, dtype=torch.float32)):
            return self.model.residual.depth_state(place.state, reader).double()

    def clean_states(self) -> list[Tensor]:
        """`z_0 … z_M`."""
        return [self.depth_state(block, place) for block, place in enumerate(self.places)]

    def losses(self, place: Place) -> Tensor:
        """Mean loss of each window over its T-1 predictions, `[B]` in float64, from the place before the close."""
        hidden = self.model.residual.close(place.state) if place.given is None else place.given
        logits: Tensor = self.model.head(self.model.norm(hidden))
        due = self.windows[:, 1:]
        found = F.cross_entropy(at_least_fp32(logits[:, :-1]).flatten(0, 1), due.flatten(), reduction="none")
        return found.view(due.shape).double().mean(dim=1)


def check_rule(model: Transformer, rule: str) -> str:
    """The rule for skipping a block, "" for the design's published one. Raises `UserError` for another design's."""
    valid = model.residual.skip_rules
    if rule and rule not in valid:
        raise UserError(f"skip must be one of {', '.join(valid)} for this design, got {rule!r}")
    return rule or valid[0]


@contextmanager
def swapped(model: Transformer, i: int, j: int) -> Iterator[None]:
    """The model with the weights of blocks i and j exchanged: every tensor that both own with equal shape, and the numbers that
    go with them. What only one of them has stays where it is.
    """
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    links = [(block.attention_link, block.mlp_link) for block in blocks]

    def exchange() -> None:
        ours, theirs = (_owned(model, blocks, links, block) for block in (i, j))
        for role in ours.keys() & theirs.keys():
            a, b = ours[role], theirs[role]
            if a.shape == b.shape:
                a.data, b.data = b.data, a.data
        for a_link, b_link in zip(links[i], links[j], strict=True):
            for name in model.residual.moves_with_block:
                if hasattr(a_link, name) and hasattr(b_link, name):
                    first, second = getattr(a_link, name), getattr(b_link, name)
                    setattr(a_link, name, second)
                    setattr(b_link, name, first)

    exchange()
    try:
        yield
    finally:
        exchange()


def _owned(model: Transformer, blocks: list[Block], links: list[tuple[Link, Link]], block: int) -> dict[str, Tensor]:
    parts = {"attention": blocks[block].attention, "mlp": blocks[block].mlp}
    found: dict[str, Tensor] = {
        f"{role}.{name}": parameter for role, part in parts.items() for name, parameter in part.named_parameters()
    }
    return found | model.residual.owned(links, block)
