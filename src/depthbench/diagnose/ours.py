"""Our own models as subjects, through the residual protocol: a user's design needs nothing more."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from depthbench.diagnose.subject import Passes, Place, Subject, exchange_data
from depthbench.model.backbone import AttentionSublayer, Rope, rope_table
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.model.transformer import Block, Transformer
from depthbench.model.weights_hash import hash_weights
from depthbench.residual.protocol import Link


class OurSubject(Subject):
    """A `Transformer`, put on `device` in evaluation mode; `precision` is fp32, bf16 (autocast) or fp64."""

    def __init__(
        self, model: Transformer, name: str = "the model", design: str = "", device: str = "cpu", precision: str = "fp32"
    ) -> None:
        self.device, self.precision, self.name = torch.device(device), precision, name
        self.model = model.to(self.device, torch.float64 if precision == "fp64" else None).eval()
        self.design = design or model.residual.key or type(model.residual).__name__
        self.depth, self.context, self.vocab_size = model.shape.n_layers, model.shape.context, model.shape.vocab_size
        self.skip_rules = model.residual.skip_rules
        self.blocks = [block for block in model.blocks if isinstance(block, Block)]
        self.links: list[tuple[Link, Link]] = [(block.attention_link, block.mlp_link) for block in self.blocks]
        self._owned = [self._find_owned(block) for block in range(self.depth)]

    def passes(self, windows: Tensor) -> OurPasses:
        """See `Subject`."""
        return OurPasses(self, windows)

    def weights_sha256(self) -> str:
        """See `Subject`."""
        return hash_weights(self.model)

    def _find_owned(self, block: int) -> dict[str, Tensor]:
        """The parameters that belong to a block, by role."""
        parts = {"attention": self.blocks[block].attention, "mlp": self.blocks[block].mlp}
        found: dict[str, Tensor] = {
            f"{role}.{name}": parameter for role, part in parts.items() for name, parameter in part.named_parameters()
        }
        return found | self.model.residual.owned(self.links, block)

    def touched(self, block: int) -> frozenset[int]:
        """See `Subject`."""
        mine = {id(parameter) for parameter in self._owned[block].values()}
        where = {at for at, found in enumerate(self.blocks) if any(id(parameter) in mine for parameter in found.parameters())}
        at_the_end = any(id(parameter) in mine for parameter in self.model.residual.parameters())
        return frozenset(where | {block} | ({self.depth} if at_the_end else set()))

    def exchange(self, i: int, j: int) -> None:
        """See `Subject`; plain numbers that the design names go along."""
        ours, theirs = self._owned[i], self._owned[j]
        exchange_data(ours, theirs)
        for a_link, b_link in zip(self.links[i], self.links[j], strict=True):
            for name in self.model.residual.moves_with_block:
                if hasattr(a_link, name) and hasattr(b_link, name):
                    first, second = getattr(a_link, name), getattr(b_link, name)
                    setattr(a_link, name, second)
                    setattr(b_link, name, first)


class OurPasses(Passes):
    """Passes through a `Transformer`."""

    def __init__(self, subject: OurSubject, windows: Tensor) -> None:
        self.subject: OurSubject = subject
        self.windows = windows
        self.residual = subject.model.residual
        embedding: Tensor = subject.model.embedding(windows)
        self.rope: Rope = rope_table(windows.shape[1], subject.model.shape.head_dim, like=embedding)
        with full_precision(embedding):
            self.places = [Place(self.residual.open(embedding))]
        self._check_finite(-1)
        for block in range(subject.depth):
            self.places.append(self.through(block, self.places[-1]))
            self._check_finite(block)

    def through(self, block: int, place: Place) -> Place:
        """See `Passes`."""
        parts = self.subject.blocks[block]
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
        """See `Passes`."""
        with self._full_precision():
            return Place(*self.residual.skip(self.places[block].state, self.subject.links[block], rule))

    def replaced(self, block: int, z: Tensor) -> Place:
        """See `Passes`."""
        with self._full_precision():
            return Place(*self.residual.replace(self.places[block].state, self.subject.links[block], z))

    def raw_depth_state(self, block: int, place: Place) -> Tensor:
        """See `Passes`."""
        return self.residual.depth_state(place.state, self.reader(block))

    def early_exit(self, block: int, place: Place) -> Tensor:
        """See `Passes`."""
        with self._full_precision():
            return self.residual.early_exit(place.state, self.reader(block))

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Passes`."""
        found: Tensor = self.subject.model.head(self.subject.model.norm(hidden))
        return found

    def reader(self, block: int) -> Link | None:
        """The link that reads the state before `block`, None for the close."""
        return self.subject.links[block][0] if block < self.subject.depth else None

    def _full_precision(self) -> AbstractContextManager[None]:
        return full_precision(self.windows.new_empty(0, dtype=torch.float32))
