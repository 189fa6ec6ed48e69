"""`preln` is Llama: logits and all gradients equal those of transformers' LlamaForCausalLM with the same weights."""

import pytest
import torch

from depthbench import ModelShape
from helpers import random_model

llama = pytest.importorskip("transformers.models.llama.modeling_llama")

MHA = ModelShape(3, 24, 4, d_ff=40, vocab_size=29, context=33)
GQA = ModelShape(3, 24, 4, n_kv_heads=2, d_ff=40, vocab_size=29, context=33)
NAMES = {
    "embedding.": "model.embed_tokens.",
    "blocks.": "model.layers.",
    "attention_link.norm.gain": "input_layernorm.weight",
    "mlp_link.norm.gain": "post_attention_layernorm.weight",
    "attention.": "self_attn.",
    "head.": "lm_head.",
    "norm.gain": "model.norm.weight",
    **{f".{role}.weight": f".{role}_proj.weight" for role in ("q", "k", "v", "o", "gate", "up", "down")},
}


def their_name(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def llama_with_weights_of(model, shape):
    config = llama.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )
    other = llama.LlamaForCausalLM(config).double()
    other.load_state_dict({their_name(name): value for name, value in model.state_dict().items()})
    return other


def rms_norm_in_float64(self, x):
    return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()


def rope_in_float64(self, x, position_ids):
    exponent = torch.arange(0, 6, 2, dtype=torch.float64) / 6  # a head has 6 dimensions
    angle = position_ids[..., None].double() * 10_000.0**-exponent
    angle = torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("shape", [MHA, GQA], ids=["mha", "gqa"])
@pytest.mark.parametrize(("patched", "tolerance"), [(False, 1e-6), (True, 1e-10)], ids=["as shipped", "float64"])
def test_logits_and_gradients_equal_llamas(monkeypatch, shape, patched, tolerance):
    if patched:
        monkeypatch.setattr(llama.LlamaRMSNorm, "forward", rms_norm_in_float64)
        monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", rope_in_float64)
    model = random_model("preln", shape)
    other = llama_with_weights_of(model, shape)
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(shape.vocab_size, (2, shape.context), generator=generator)
    weight = torch.randn(2, shape.context, shape.vocab_size, generator=generator, dtype=torch.float64)
    logits, expected = model(x), other(x).logits
    (logits * weight).sum().backward()
    (expected * weight).sum().backward()
    logits, expected = logits.detach(), expected.detach()
    assert logits.dtype == expected.dtype == torch.float64
    assert float((logits - expected).abs().max()) <= tolerance * float(expected.abs().max())

    theirs = dict(other.named_parameters())
    assert {their_name(name) for name, _ in model.named_parameters()} == theirs.keys()
    largest = max(float(p.grad.abs().max()) for p in theirs.values())
    for name, parameter in model.named_parameters():
        assert float((parameter.grad - theirs[their_name(name)].grad).abs().max()) <= tolerance * largest, name
