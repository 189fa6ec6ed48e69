"""What a residual design is: how sublayers are wired together. Nothing else in the model knows which design it runs.

A model of M blocks has 2M sublayers, numbered i = 0 … 2M-1 (even: attention, odd: feed-forward); sublayer i lies in block i // 2.
A design opens the embedding into a state, wires every sublayer with a `Link` that reads the sublayer's input from the state and
writes its output back, and closes the state into the hidden vector that the final norm and the head receive.

A state is a tensor, or tensors in (named) tuples, lists and dictionaries, nested as you like; `read` and `write` make new ones and
leave the given one as it was. Nothing in a state mixes positions, so decoding needs only the attention cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthbench.model.backbone import Sublayer
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.shape import ModelShape

State = Any


def tensors_of(state: State) -> Iterator[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple | list | dict):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_of(part)


class Link(nn.Module):
    """The wiring of one sublayer. Owns that sublayer's norms and mixing parameters.

    `no_decay` names the link's own parameters that weight decay leaves alone.
    """

    no_decay: ClassVar[tuple[str, ...]] = ()

    def read(self, state: State) -> Tensor:
        """What the sublayer sees: `[B, T, d]`."""
        raise NotImplementedError

    def write(self, state: State, y: Tensor) -> State:
        """The state after the sublayer has put out `y`, `[B, T, d]`."""
        raise NotImplementedError

    def take(self, given: Tensor) -> Tensor:
        """What the sublayer sees if `given`, `[B, T, d]`, stands for what the link would have read; see `Residual.skip`."""
        raise NotImplementedError

    def stream_map(self, state: State) -> Tensor | None:
        """How n parallel streams carry over to the state after this sublayer, `[B, T, n, n]`, target by source. None: there is
        one.
        """
        return None

    def forward(self, state: State, sublayer: Sublayer) -> State:
        """`write(state, sublayer(read(state)))`. Override only if the sublayer needs more than `x`, or to share work."""
        with full_precision(next(tensors_of(state))):
            x = self.read(state)
        y = sublayer(x)
        with full_precision(y):
            return self.write(state, at_least_fp32(y))


@dataclass(frozen=True)
class NoOptions:
    """A design without options."""


class Residual(nn.Module):
    """A residual design for one model: opens the state, makes the links, closes the state.

    Class attributes describe the design to `depthbench designs`; `Options` is a frozen dataclass of its options, each with a
    default. Weights of `nn.Linear` get the common init; other parameters take their initial values in `__init__`, by constants
    or by torch's generator, which the model's seed has set.
    """

    key: ClassVar[str] = ""
    family: ClassVar[str] = "user"
    equation: ClassVar[str] = ""
    source: ClassVar[str] = ""
    Options: ClassVar[type[Any]] = NoOptions
    no_decay: ClassVar[tuple[str, ...]] = ()
    state_grows: ClassVar[bool] = False  # whether the state gains tensors from sublayer to sublayer
    skip_rules: ClassVar[tuple[str, ...]] = ("identity",)  # what skipping a block may mean, the published meaning first
    moves_with_block: ClassVar[
        tuple[str, ...]
    ] = ()  # plain numbers of links that go with a block's weights when blocks are swapped

    def __init__(self, shape: ModelShape, options: Any = None) -> None:
        super().__init__()
        self.shape = shape
        self.options = self.Options() if options is None else options

    @classmethod
    def exempt_from_decay(cls, shape: ModelShape) -> set[str]:
        """Names of the parameters that weight decay leaves alone, as the modules of a design declare them."""
        with torch.device("meta"):
            residual = cls(shape)
            links = [residual.link(i) for i in range(shape.n_sublayers)]
        return set(residual.no_decay).union(*(link.no_decay for link in links))

    def open(self, embedding: Tensor) -> State:
        """`[B, T, d]` to whatever the design carries. Default: the stream itself."""
        return embedding

    def link(self, i: int) -> Link:
        """Make the wiring of sublayer `i`, 0 ≤ i < 2M. Called once a sublayer, when the model is built."""
        raise NotImplementedError

    def close(self, state: State) -> Tensor:
        """The state after the last sublayer to `[B, T, d]`, before the final norm. Default: the stream itself."""
        hidden: Tensor = state
        return hidden

    def layer_output(self, state: State) -> Tensor:
        """What of the state after a block is watched in training, `[B, T, …]`. Default: its first tensor, the stream or streams."""
        return next(tensors_of(state))

    def depth_state(self, state: State, reader: Link | None) -> Tensor:
        """What of a state between two blocks is compared across depths, `[B, T, D]`. `reader` is the link that reads it next, None
        for the close. Default: what the close would give.
        """
        return self.close(state)

    def skip(self, state: State, links: tuple[Link, Link], rule: str) -> tuple[State, Tensor | None]:
        """The state after a block, with these links, that is left out; and what the next link (or the close) takes in place of
        what it would read, `[B, T, d]`, or None if it reads as always. Default: the state as it was.
        """
        return state, None

    def early_exit(self, state: State, reader: Link | None) -> Tensor:
        """What a model that ended here would hand to its final norm, `[B, T, d]`; arguments as for `depth_state`. Default: what the
        close gives.
        """
        return self.close(state)

    def replace(self, state: State, links: tuple[Link, Link], z: Tensor) -> tuple[State, Tensor | None]:
        """As `skip`, for a block of which the depth state after it, `z`, is known all the same. Default: `z` is the state.

        Raises `NotImplementedError` for a state that is no tensor.
        """
        if not isinstance(state, Tensor):
            raise NotImplementedError("a design whose state is no tensor says itself what replaces a block")
        return z.view_as(state), None

    def streams(self, state: State) -> Tensor | None:
        """The parallel streams of a state, `[B, T, n, d]`, or None if there is one."""
        return None

    def owned(self, links: Sequence[tuple[Link, Link]], block: int) -> dict[str, Tensor]:
        """The parameters of links that belong to a block and go with it when two blocks are swapped, by role."""
        return {f"{side}.{name}": p for side, link in enumerate(links[block]) for name, p in link.named_parameters()}

    def weight_scale(self, role: str) -> float:
        """What multiplies a backbone matrix after the common init; `role` is one of q, k, v, o, gate, up, down."""
        return 1.0

    def own_parameters(self) -> int | None:
        """Parameters beyond those of `preln` at the same shape, by formula; None: no formula, they are counted."""
        return None

    def own_flops(self, context: int) -> float:
        """Forward FLOPs a token of the design itself (2 a multiply-add; products only, no norms or activations)."""
        return 0.0

    def state_elements(self) -> int:
        """Numbers a token that the state holds at its widest, between two sublayers."""
        return self.shape.d_model
