"""Pre-LN as the Llama of transformers: the same function under other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.backbone import NORM_EPS, ROPE_THETA
from depthbench.shape import ModelShape

OUTER = {"embedding.weight": "model.embed_tokens.weight", "norm.gain": "model.norm.weight", "head.weight": "lm_head.weight"}
INNER = {
    "attention_link.norm.gain": "input_layernorm.weight",
    "mlp_link.norm.gain": "post_attention_layernorm.weight",
    **{f"attention.{role}.weight": f"self_attn.{role}_proj.weight" for role in "qkvo"},
    **{f"mlp.{role}.weight": f"mlp.{role}_proj.weight" for role in ("gate", "up", "down")},
}


def llama_name(name: str) -> str:
    """The name of one of our parameters there."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    return f"model.layers.{match[1]}.{INNER[match[2]]}" if match else OUTER[name]


def to_llama(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dictionary under their names."""
    return {llama_name(name): tensor for name, tensor in tensors.items()}


def from_llama(tensors: Mapping[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Theirs under ours; `names` are all that we need."""
    found = {}
    for name in names:
        theirs = llama_name(name)
        if theirs == "lm_head.weight" and theirs not in tensors:  # tied to the embedding
            theirs = "model.embed_tokens.weight"
        found[name] = tensors[theirs].detach().clone()
    return found


def llama_config(shape: ModelShape) -> dict[str, Any]:
    """The configuration of a model of this shape."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ff,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def shape_of(config: Any, name: str) -> ModelShape:
    """The shape of a Llama. Raises `UserError` if it is one that `preln` cannot compute, saying why."""
    if config.model_type != "llama":
        raise UserError(
            f"{name} is of the family {config.model_type}; only llama is what preln computes; use --hf with diagnose or eval"
        )
    rope = dict(getattr(config, "rope_parameters", None) or {})
    theta = rope.get("rope_theta", getattr(config, "rope_theta", ROPE_THETA))
    wanted = {
        "rms_norm_eps": (config.rms_norm_eps, NORM_EPS),
        "rope_theta": (float(theta), ROPE_THETA),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "hidden_act": (config.hidden_act, "silu"),
        "attention_bias": (bool(config.attention_bias), False),
        "mlp_bias": (bool(config.mlp_bias), False),
    }
    for key, (found, due) in wanted.items():
        if found != due:
            raise UserError(
                f"{name} has {key} {found}, and preln is computed with {due}: another function; use --hf {name} with diagnose or"
                " eval, which take it as it is"
            )
    return ModelShape(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", 0) or 0,
        d_ff=config.intermediate_size,
        vocab_size=config.vocab_size,
        context=config.max_position_embeddings,
    )
