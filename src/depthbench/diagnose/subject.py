"""What is diagnosed: a stack of blocks that can be entered in the middle, with one block left out, or two exchanged.

`Subject` is a model, `Passes` a batch of windows on its way through it. Ours are in `ours.py`, those of Hugging Face checkpoints in
`hf.py`; no diagnostic knows which one it measures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.precision import at_least_fp32, autocast, full_precision
from depthbench.residual.protocol import tensors_of

PRECISIONS = ("fp32", "bf16", "fp64")
CHUNK_TOKENS, CHUNK_LOGITS = 2048, 2**25  # held at once, whichever is fewer


@dataclass(frozen=True)
class Place:
    """Where a pass stands, before a block or the end: the state, and what is taken in place of the next read, if anything is
    (after a skipped block; see `Residual.skip`).
    """

    state: Any
    given: Tensor | None = None


class Subject(ABC):
    """A model of M blocks.

    Attributes:
        name: for people.
        design: how its blocks are wired: a design's label, or the family of a checkpoint.
        depth: M.
        context: the longest window that it takes.
        vocab_size: token ids lie below it.
        skip_rules: what leaving a block out may mean, the published meaning first.
        device, precision: where and how its passes are computed; norms, cosines and sums are in float64 all the same.
    """

    name: str
    design: str
    depth: int
    context: int
    vocab_size: int
    skip_rules: tuple[str, ...] = ("identity",)
    device: torch.device
    precision: str

    def begin(self, windows: Tensor) -> Passes:
        """The clean pass of windows `[B, T]`, int64.

        Raises `UserError` for windows longer than the context, and naming the first block that puts out a non-finite value.
        """
        if windows.shape[1] > self.context:
            raise UserError(f"windows of {windows.shape[1]} tokens are longer than the context of {self.context}")
        return self.passes(windows.to(self.device))

    @abstractmethod
    def passes(self, windows: Tensor) -> Passes:
        """As `begin`, of windows on the device that are not too long."""

    @abstractmethod
    def exchange(self, i: int, j: int) -> None:
        """Exchange what blocks i and j own; twice is as before. See `exchange_data`."""

    @contextmanager
    def swapped(self, i: int, j: int) -> Iterator[None]:
        """The model with what blocks i and j own exchanged."""
        self.exchange(i, j)
        try:
            yield
        finally:
            self.exchange(i, j)

    @abstractmethod
    def touched(self, block: int) -> frozenset[int]:
        """The blocks (M: the end) that compute with what `block` owns."""

    @abstractmethod
    def weights_sha256(self) -> str:
        """A hash (hex) of all weights, by name."""

    @property
    def chunk_tokens(self) -> int:
        """Tokens whose logits are held at once."""
        return max(16, min(CHUNK_TOKENS, CHUNK_LOGITS // self.vocab_size))

    def check_rule(self, rule: str) -> str:
        """The rule for skipping a block, "" for the published one. Raises `UserError` for one that this model does not have."""
        if rule and rule not in self.skip_rules:
            raise UserError(f"skip must be one of {', '.join(self.skip_rules)} for {self.design}, got {rule!r}")
        return rule or self.skip_rules[0]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Without gradients, in the precision of the subject."""
        with torch.no_grad(), autocast(self.device, self.precision):
            yield


class Passes(ABC):
    """Passes over one batch of windows `[B, T]`. `places[l]` is the clean pass before block l, and `places[M]` before the end."""

    subject: Subject
    windows: Tensor
    places: list[Place]

    @abstractmethod
    def through(self, block: int, place: Place) -> Place:
        """A block, from the place before it to the one after. The batch of `place` may be any multiple of the windows."""

    @abstractmethod
    def skipping(self, block: int, rule: str) -> Place:
        """The place after `block`, which is left out of the clean pass."""

    @abstractmethod
    def replaced(self, block: int, z: Tensor) -> Place:
        """The place after `block`, of whose depth state after it only `z` is known. Raises `NotImplementedError` if the design
        cannot say what that means.
        """

    @abstractmethod
    def raw_depth_state(self, block: int, place: Place) -> Tensor:
        """`z_block` in the precision of the pass; `place` is before block `block`."""

    @abstractmethod
    def early_exit(self, block: int, place: Place) -> Tensor:
        """What a model that ended before `block` would hand to its final norm, `[B, T, d]`."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """`[…, d]`, before the final norm, to `[…, V]`."""

    @property
    def state_dtype(self) -> torch.dtype:
        """The precision that the state is kept in."""
        return next(tensors_of(self.places[0].state)).dtype

    def depth_state(self, block: int, place: Place) -> Tensor:
        """`z_block`, `[B, T, D]` in float64."""
        with full_precision(self.windows.new_empty(0, dtype=torch.float32)):
            return (self.raw_depth_state(block, place) if place.given is None else place.given).double()

    def clean_states(self) -> list[Tensor]:
        """`z_0 … z_M`."""
        return [self.depth_state(block, place) for block, place in enumerate(self.places)]

    def end(self, place: Place) -> Tensor:
        """What the final norm reads at the place before the end."""
        return self.early_exit(self.subject.depth, place) if place.given is None else place.given

    def losses(self, place: Place) -> Tensor:
        """Mean loss of every row over its T-1 predictions, `[rows]` in float64, from the place before the end."""
        return self.losses_of(self.end(place))

    def losses_of(self, hidden: Tensor) -> Tensor:
        """Mean loss of every row, `[rows]` in float64, from what the final norm reads, `[rows, T, d]`."""
        due = self.windows[:, 1:].repeat(len(hidden) // len(self.windows), 1)
        rows = max(1, self.subject.chunk_tokens // due.shape[1])
        found = [
            F.cross_entropy(at_least_fp32(self.logits(part[:, :-1])).flatten(0, 1), targets.flatten(), reduction="none").view(
                targets.shape
            )
            for part, targets in zip(torch.split(hidden, rows), torch.split(due, rows), strict=True)
        ]
        return torch.cat(found).double().mean(dim=1)

    def _check_finite(self, block: int) -> None:
        """Raise `UserError` if the place after `block` (-1: the embedding) has a value that is not finite."""
        with full_precision(self.windows.new_empty(0, dtype=torch.float32)):
            z = self.raw_depth_state(block + 1, self.places[block + 1])
        if not torch.isfinite(z).all():
            where = (
                f"block {block} of {self.subject.name} (counted from 0)" if block >= 0 else f"the embedding of {self.subject.name}"
            )
            advice = "try --precision fp32" if self.subject.precision == "bf16" else "its weights are damaged, or it has diverged"
            raise UserError(f"{where} puts out a value that is not finite; {advice}")


def joined(places: list[Place]) -> Place:
    """Places of several passes as one with a larger batch: rows of the first, then of the second …"""
    if len(places) == 1:
        return places[0]
    given = [place.given for place in places if place.given is not None]
    return Place(_joined([place.state for place in places]), torch.cat(given) if given else None)


def parted(place: Place, n: int) -> list[Place]:
    """The n places that `joined` put together."""
    if n == 1:
        return [place]
    given = place.given.chunk(n) if place.given is not None else [None] * n
    return [Place(state, part) for state, part in zip(_parted(place.state, n), given, strict=True)]


def _joined(states: list[Any]) -> Any:
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(states)
    if isinstance(first, dict):
        return {key: _joined([state[key] for state in states]) for key in first}
    if isinstance(first, tuple | list):
        parts = [_joined(list(part)) for part in zip(*states, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def _parted(state: Any, n: int) -> list[Any]:
    if isinstance(state, Tensor):
        return list(state.chunk(n))
    if isinstance(state, dict):
        split = {key: _parted(value, n) for key, value in state.items()}
        return [{key: parts[k] for key, parts in split.items()} for k in range(n)]
    if isinstance(state, tuple | list):
        columns = [_parted(part, n) for part in state]
        rows = [[column[k] for column in columns] for k in range(n)]
        return [type(state)(*row) if hasattr(state, "_fields") else type(state)(row) for row in rows]
    return [state] * n


def exchange_data(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    """Exchange the values of every tensor that both have, with equal shape."""
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        if a.shape == b.shape:
            a.data, b.data = b.data, a.data
