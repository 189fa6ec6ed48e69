"""Building what the benchmarks compare: designs by name, and the peers that stand beside them.

`llama` is transformers' LlamaForCausalLM of the same sizes; `stacked_attnres` is Full AttnRes as its equations read at first sight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from torch import Tensor, nn

from depthbench import ModelShape, build_model
from depthbench.errors import UserError
from depthbench.model.backbone import NORM_EPS, ROPE_THETA
from depthbench.study.cell import DesignChoice

BASELINE = "preln"
LLAMA = "llama"
STACKED = "stacked_attnres"
STACKED_DESIGN = f"{Path(__file__).with_name('stacked_attnres.py')}:StackedAttnRes"


def build(name: str, shape: ModelShape) -> nn.Module:
    """A peer or a design (`hc`, `hc[streams=2]`, `path/to/file.py:Class`): tokens `[B, T]` to logits `[B, T, V]`, fp32."""
    if name == LLAMA:
        return Llama(shape)
    choice = DesignChoice.parse(STACKED_DESIGN if name == STACKED else name)
    return build_model(choice.name, shape, **dict(choice.options))


def with_baseline(names: tuple[str, ...]) -> list[str]:
    """Pre-LN, then the others, each once."""
    return list(dict.fromkeys((BASELINE, *names)))


def short(name: str) -> str:
    """A name for a table: no path, and no square brackets that the table would take for a style."""
    return escape(name.rpartition(":")[2])


class Llama(nn.Module):
    """transformers' model from a configuration (random weights, no download), with its SDPA attention and no cache."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.llama = _llama(shape)
        if (count := sum(p.numel() for p in self.parameters())) != shape.total_parameters:
            raise RuntimeError(f"llama has {count} parameters, the shape {shape.total_parameters}: not the same model")

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """`[B, T, V]`."""
        logits: Tensor = self.llama(tokens_BT).logits
        return logits


def _llama(shape: ModelShape) -> Any:
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise UserError("llama needs transformers: install depthbench[test], or leave llama out of --designs") from None
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.d_model,
            intermediate_size=shape.d_ff,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            max_position_embeddings=shape.context,
            rms_norm_eps=NORM_EPS,
            rope_theta=ROPE_THETA,
            tie_word_embeddings=False,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
