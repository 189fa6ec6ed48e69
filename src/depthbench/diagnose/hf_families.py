"""Where each family of Hugging Face decoders keeps its blocks, its final norm and its head: all that an adapter has to know."""

from __future__ import annotations

from dataclasses import dataclass

from depthbench.errors import UserError


@dataclass(frozen=True)
class Family:
    """Dotted names of modules, from the model that has the head. A block takes the hidden state first and gives it back, alone or
    as the first of a tuple. `softcap` names the configuration's bound on logits, if there is one.
    """

    blocks: str = "model.layers"
    norm: str = "model.norm"
    head: str = "lm_head"
    softcap: str = ""


LLAMA_LIKE = Family()
FAMILIES = {  # by model_type
    "llama": LLAMA_LIKE,
    "mistral": LLAMA_LIKE,
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE,
    "phi3": LLAMA_LIKE,
    "olmo2": LLAMA_LIKE,
    "gemma2": Family(softcap="final_logit_softcapping"),
    "gemma3_text": Family(softcap="final_logit_softcapping"),
    "gpt2": Family("transformer.h", "transformer.ln_f"),
    "gpt_neox": Family("gpt_neox.layers", "gpt_neox.final_layer_norm"),
}


def find_family(model_type: str, name: str) -> Family:
    """The family of a checkpoint. Raises `UserError` that says what an adapter needs."""
    if model_type not in FAMILIES:
        raise UserError(
            f"{name} is of the family {model_type!r}, for which there is no adapter; there are {', '.join(FAMILIES)}. One needs the"
            " names of the list of blocks, of the final norm and of the head (see hf_families.py), of a causal decoder whose blocks"
            " take one hidden state and give back the next"
        )
    return FAMILIES[model_type]
