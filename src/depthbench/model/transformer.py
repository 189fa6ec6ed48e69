"""The decoder: embedding, blocks wired by a residual design, final norm, head. It never asks which design it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from depthbench.model.backbone import Attention, AttentionSublayer, RMSNorm, Rope, SwiGLU, rope_table
from depthbench.model.precision import full_precision
from depthbench.shape import ModelShape

if TYPE_CHECKING:  # imports run from residual to model
    from depthbench.residual.protocol import Link, Residual

INIT_STD = 0.02
INIT_CUT = 3.0  # in standard deviations


class Block(nn.Module):
    """An attention and a feed-forward sublayer, each with the link that wires it."""

    def __init__(self, shape: ModelShape, attention_link: Link, mlp_link: Link) -> None:
        super().__init__()
        self.attention_link = attention_link
        self.attention = Attention(shape)
        self.mlp_link = mlp_link
        self.mlp = SwiGLU(shape)

    def forward(self, state: Any, rope: Rope) -> Any:
        """The design's state before the block to the state after it."""
        state = self.attention_link(state, AttentionSublayer(self.attention, rope))
        return self.mlp_link(state, self.mlp)


class Transformer(nn.Module):
    """Tokens `[B, T]` to logits `[B, T, V]`. `watch`, where it is set, is shown each block's number and the state after it."""

    watch: Callable[[int, Any], None] | None = None

    def __init__(self, shape: ModelShape, residual: Residual) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model)
        self.residual = residual
        self.blocks = nn.ModuleList(
            Block(shape, residual.link(2 * block), residual.link(2 * block + 1)) for block in range(shape.n_layers)
        )
        self.norm = RMSNorm(shape.d_model)
        self.head = nn.Linear(shape.d_model, shape.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of the next token at every position. Under autocast they come in its precision; the loss raises them."""
        logits: Tensor = self.head(self.norm(self.hidden(tokens_BT)))
        return logits

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """What the final norm receives, `[B, T, d]`."""
        embedding: Tensor = self.embedding(tokens_BT)
        rope = rope_table(tokens_BT.shape[1], self.shape.head_dim, like=embedding)
        with full_precision(embedding):
            state = self.residual.open(embedding)
        for i, block in enumerate(self.blocks):
            state = block(state, rope)
            if self.watch is not None:
                self.watch(i, state)
        with full_precision(embedding):  # the close of `attnres` is a mix like any other
            return self.residual.close(state)

    def initialise(self, seed: int) -> None:
        """Give every embedding and linear weight its initial value, N(0, 0.02²) cut at three standard deviations.

        Each value is a function of (seed, parameter name, shape) alone, so designs of one shape and seed start from the same
        backbone, on any device. The design may then scale a matrix by its role.
        """
        for name, weight in self.matrices():
            parent, role = name.split(".")[-3:-1] if name.count(".") > 1 else ("", "")
            scale = self.residual.weight_scale(role) if parent in ("attention", "mlp") else 1.0
            with torch.no_grad():
                weight.copy_(initial_matrix(name, weight.shape, seed) * scale)

    def matrices(self) -> Iterator[tuple[str, Tensor]]:
        """The weights of all embeddings and linear maps, by name, those of the design included."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                yield f"{name}.weight", module.weight


def initial_matrix(name: str, size: torch.Size, seed: int) -> Tensor:
    """The truncated normal draw that belongs to (seed, name, shape), fp32 on the CPU."""
    key = hashlib.sha256(f"{seed}/{name}/{tuple(size)}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little", signed=True))
    bound = INIT_CUT * INIT_STD
    return nn.init.trunc_normal_(torch.empty(size), std=INIT_STD, a=-bound, b=bound, generator=generator)
