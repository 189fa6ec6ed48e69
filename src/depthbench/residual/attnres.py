"""Full Attention Residuals [2603.15031]: every sublayer reads a softmax mix over all earlier outputs; nothing is added up.

Sources are `v_0`, the embedding, and `v_{j+1}`, the raw output of sublayer j. Sublayer i ≥ 1 reads

    h_i = Σ_{j ≤ i} p_j v_j,   p = softmax_j(q_i · RN_i(v_j)),   y = F(RN(h_i)),

sublayer 0 reads the embedding, and the close mixes all 2M+1 sources with a query and key gain of its own. There is no
`1/sqrt(d)` unless the option asks for it.

At initial weights (`q_i = 0`, a uniform mix) the network equals Pre-LN up to the norms' eps. With eps 1e-6 the difference is large
all the same: a mean over many sources of size 0.02 has a mean square near eps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.model.backbone import NORM_EPS, RMSNorm, Sublayer
from depthbench.model.frozen import coefficient
from depthbench.model.precision import at_least_fp32, full_precision
from depthbench.residual.protocol import Link, Residual
from depthbench.residual.tape import TapeState
from depthbench.shape import ModelShape


@dataclass(frozen=True)
class AttnResOptions:
    """`scale`: divide the logits by `sqrt(d)`."""

    scale: bool = False


class Source(NamedTuple):
    """A vector `[B, T, d]` that later sublayers may read, and `1 / rms` of it, `[B, T]`, computed once for all readers."""

    value: Tensor
    rrms: Tensor


def source(value: Tensor, eps: float) -> Source:
    """A source with its norm."""
    return Source(value, torch.rsqrt(value.square().mean(-1) + eps))


class DepthMix(nn.Module):
    """The softmax mix over sources: a query (zeros at init) and the gain of the key norm (ones)."""

    def __init__(self, d_model: int, scale: bool) -> None:
        super().__init__()
        self.factor = d_model**-0.5 if scale else 1.0
        self.query = nn.Parameter(torch.zeros(d_model))
        self.key_gain = nn.Parameter(torch.ones(d_model))

    @property
    def probe(self) -> Tensor:
        """`q·g`, `[d]`: q · (v·g / rms) = (v · (q·g)) / rms, one product a source, and no normed copy of it is ever kept."""
        return self.query * self.key_gain * self.factor

    def weights(self, sources: Sequence[Source]) -> Tensor:
        """`p`, `[B, T, number of sources]`."""
        probe = self.probe
        return coefficient(torch.stack([(v @ probe) * rrms for v, rrms in sources], dim=-1).softmax(-1))

    def forward(self, sources: Sequence[Source]) -> Tensor:
        """`h`, `[B, T, d]`. The sources are never stacked, so memory for training grows with their number, not its square."""
        p = self.weights(sources).unsqueeze(-2).unbind(-1)
        mixed = p[0] * sources[0].value
        for weight, (value, _) in zip(p[1:], sources[1:], strict=True):
            mixed = torch.addcmul(mixed, weight, value)
        return mixed


class MixLink(Link):
    """Reads a depth mix; what it reads from and how it writes is left to the two designs of the family."""

    def __init__(self, d_model: int, i: int, scale: bool) -> None:
        super().__init__()
        self.eps, self.i = NORM_EPS, i
        self.norm = RMSNorm(d_model)
        self.mix = DepthMix(d_model, scale) if i > 0 else None

    def sources(self, state: Any) -> Sequence[Source]:
        """The sources of a state, oldest first."""
        raise NotImplementedError

    def read(self, state: Any) -> Tensor:
        """`RN(h_i)`; the embedding for sublayer 0."""
        sources = self.sources(state)
        x: Tensor = self.norm(sources[0].value if self.mix is None else self.mix(sources))
        return x

    def take(self, given: Tensor) -> Tensor:
        """`RN` of a given mix."""
        x: Tensor = self.norm(given)
        return x


class AttnResLink(MixLink):
    """The state is the tuple of sources, or in training a tape of them (see `tape.py`)."""

    def forward(self, state: Any, sublayer: Sublayer) -> Any:
        """As `read` and `write` say; on the tape in training."""
        if not isinstance(state, TapeState):
            return super().forward(state, sublayer)
        with full_precision(state.token):
            x = self.norm(state.embedding if self.i == 0 else state.read(self.i))
        y = sublayer(x)
        with full_precision(state.token):
            state.append(self.i, at_least_fp32(y))
        return state

    def sources(self, state: tuple[Source, ...]) -> Sequence[Source]:
        """All of them."""
        return state

    def write(self, state: tuple[Source, ...], y: Tensor) -> tuple[Source, ...]:
        """`y` becomes the newest source."""
        return (*state, source(y, self.eps))


class AttnRes(Residual):
    """State: all sources so far, 2M+1 in the end."""

    key = "attnres"
    family = "cross-layer"
    equation = "x_i = Σ_{j≤i} softmax_j(q_i · RN_i(v_j))·v_j;  v_{i+1} = F(RN(x_i));  v_0 = embedding"
    source = "2603.15031"
    state_grows = True
    skip_rules = ("newest", "state", "attend")
    Options: ClassVar[type[Any]] = AttnResOptions

    def __init__(self, shape: ModelShape, options: Any = None) -> None:
        super().__init__(shape, options)
        self.eps = NORM_EPS
        self.mix = DepthMix(shape.d_model, self.options.scale)
        self.readers: dict[int, DepthMix] = {}  # a plain dict: the links own these parameters

    def open(self, embedding: Tensor) -> Any:
        """The embedding as the only source."""
        exact = type(self) is AttnRes and len(self.readers) == self.shape.n_sublayers - 1  # a subclass may read otherwise
        if exact and self.training and torch.is_grad_enabled():
            with full_precision(embedding):
                probes = torch.stack([*(self.readers[i].probe for i in sorted(self.readers)), self.mix.probe])
                return TapeState(embedding, probes, self.eps)
        return (source(embedding, self.eps),)

    def link(self, i: int) -> Link:
        """A query and a key gain for every sublayer but the first."""
        link = AttnResLink(self.shape.d_model, i, self.options.scale)
        if link.mix is not None:
            self.readers[i] = link.mix
        return link

    def close(self, state: Any) -> Tensor:
        """One more mix over all sources."""
        hidden: Tensor = state.read(self.shape.n_sublayers) if isinstance(state, TapeState) else self.mix(state)
        return hidden

    def sources(self, state: Any) -> Sequence[Source]:
        """The sources of a state, oldest first."""
        found: Sequence[Source] = state
        return found

    def layer_output(self, state: Any) -> Tensor:
        """The newest source: what the feed-forward has put out, or the sum of the segment that it ends in."""
        newest: Tensor = state.newest if isinstance(state, TapeState) else self.sources(state)[-1].value
        return newest

    def depth_state(self, state: Any, reader: Link | None) -> Tensor:
        """The raw mix that the next reader makes."""
        mix = reader.mix if isinstance(reader, MixLink) else self.mix
        sources = self.sources(state)
        mixed: Tensor = sources[0].value if mix is None else mix(sources)
        return mixed

    def skip(self, state: Any, links: tuple[Link, Link], rule: str) -> tuple[Any, Tensor | None]:
        """No source is added. The next mix gives its newest source (`newest`, as published), the mix that the block would have
        read (`state`), or attends to what is left (`attend`).
        """
        left = self.after_nothing(state, links)
        if rule == "attend":
            return left, None
        return left, self.sources(left)[-1].value if rule == "newest" else self.depth_state(state, links[0])

    def early_exit(self, state: Any, reader: Link | None) -> Tensor:
        """The raw mix that the next reader makes."""
        return self.depth_state(state, reader)

    def replace(self, state: Any, links: tuple[Link, Link], z: Tensor) -> tuple[Any, Tensor]:
        """No source is added, and the next mix gives `z`."""
        return self.after_nothing(state, links), z

    def after_nothing(self, state: Any, links: tuple[Link, Link]) -> Any:
        """The state after a block that puts out nothing."""
        return state

    def owned(self, links: Sequence[tuple[Link, Link]], block: int) -> dict[str, Tensor]:
        """A block owns the query and key gain of its feed-forward's mix and of the next mix, not those it is read with."""
        attention, mlp = links[block]
        found: dict[str, Tensor] = {f"1.{name}": p for name, p in mlp.named_parameters()}
        found |= {f"0.{name}": p for name, p in attention.named_parameters() if not name.startswith("mix.")}
        after = links[block + 1][0] if block + 1 < len(links) else None
        mix = after.mix if isinstance(after, MixLink) and after.mix is not None else self.mix
        return found | {f"next.{name}": p for name, p in mix.named_parameters()}

    def own_parameters(self) -> int:
        """`4M·d`: a query and a key gain for 2M-1 sublayers and the close."""
        return 4 * self.shape.n_layers * self.shape.d_model

    def own_flops(self, context: int) -> float:
        """`2d` for each logit and `2d` for each source of every mix: sublayer i ≥ 1 has i+1 sources, the close 2M+1."""
        sources = sum(range(2, self.shape.n_sublayers + 1)) + self.shape.n_sublayers + 1
        return 4.0 * self.shape.d_model * sources

    def state_elements(self) -> int:
        """All sources and their norms, once the last sublayer has written."""
        return (self.shape.n_sublayers + 1) * (self.shape.d_model + 1)
