"""Reading a sequence piece by piece with a cache of keys and values, and writing on from it.

Nothing in a design's state mixes positions, so the attention cache is all that decoding needs, whatever the design.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.backbone import AttentionSublayer, Heads, KeyValues, Rope, rope_table
from depthbench.model.precision import full_precision
from depthbench.model.transformer import Block, Transformer


@dataclass(frozen=True)
class CachedAttention(AttentionSublayer):
    """An attention sublayer that goes on from earlier positions."""

    past: KeyValues

    def __call__(self, x: Tensor, /) -> Tensor:
        """See `AttentionSublayer`."""
        return self.attend(self.heads(x))

    def attend(self, heads: Heads, own_keys: Sequence[Tensor] = (), own_values: Sequence[Tensor] = ()) -> Tensor:
        """See `AttentionSublayer`."""
        return self.attention.attend(heads, self.rope, own_keys, own_values, self.past)


class Decoder:
    """A pass that can be continued. Call it with the next tokens `[B, T]` for their logits `[B, T, V]`."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.length = 0
        self.past = [KeyValues() for _ in model.blocks]

    @torch.no_grad()
    def __call__(self, tokens_BT: Tensor) -> Tensor:
        """Take in the tokens and give the logits of what follows each."""
        model, end = self.model, self.length + tokens_BT.shape[1]
        embedding: Tensor = model.embedding(tokens_BT)
        rope = Rope(*(part[self.length :] for part in rope_table(end, model.shape.head_dim, like=embedding)))
        with full_precision(embedding):
            state = model.residual.open(embedding)
        for block, past in zip(model.blocks, self.past, strict=True):
            assert isinstance(block, Block)
            state = block.attention_link(state, CachedAttention(block.attention, rope, past))
            state = block.mlp_link(state, block.mlp)
        self.length = end
        with full_precision(embedding):
            hidden = model.residual.close(state)
        logits: Tensor = model.head(model.norm(hidden))
        return logits


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 takes the likeliest; `top_k` keeps so many of the likeliest (0: all), `top_p` as
    many as make up that probability.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k must be at least 1, or 0 for all, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")

    def draw(self, logits_V: Tensor, generator: torch.Generator) -> int:
        """A token by the logits of one position."""
        logits = logits_V.double().cpu()
        if self.temperature == 0:
            return int(logits.argmax())
        p, ids = (logits / self.temperature).softmax(-1).sort(descending=True, stable=True)
        keep = (p.cumsum(0) - p < self.top_p) & (torch.arange(len(p)) < (self.top_k or len(p)))
        p = p * keep
        return int(ids[torch.multinomial(p / p.sum(), 1, generator=generator)])


def continuation(model: Transformer, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
    """Token after token, without end, from a prompt of at least one.

    A model sees at most its context: a longer prompt is cut on the left, and a text that fills the context goes on from its newer
    half.
    """
    context, device = model.shape.context, next(model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    seen = list(prompt)[-context:]
    decoder = Decoder(model)
    due = seen
    while True:
        logits = decoder(torch.tensor([due], device=device))
        token = sampling.draw(logits[0, -1], generator)
        yield token
        seen.append(token)
        due = [token]
        if decoder.length == context:
            seen = seen[-max(1, context // 2) :]
            decoder, due = Decoder(model), seen
