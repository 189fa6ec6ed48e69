"""The decoder as a whole: how its initial weights come about, and what it returns."""

import torch

from depthbench import ModelShape, build_model
from depthbench.model.transformer import initial_matrix
from helpers import GQA, tokens


def test_logits_have_a_row_for_every_position():
    assert build_model("preln", GQA)(tokens(GQA, batch=3)).shape == (3, GQA.context, GQA.vocab_size)
    assert build_model("preln", GQA)(tokens(GQA)[:, :1]).shape == (2, 1, GQA.vocab_size)


def test_logits_are_the_head_of_the_normed_hidden_state():
    model = build_model("hc", GQA).double()
    hidden = model.hidden(tokens(GQA))
    normed = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-6).sqrt() * model.norm.gain
    torch.testing.assert_close(model(tokens(GQA)), normed @ model.head.weight.T, rtol=1e-12, atol=1e-14)


def test_embedding_and_head_are_not_tied():
    model = build_model("preln", GQA)
    assert model.embedding.weight.shape == model.head.weight.shape
    assert not torch.equal(model.embedding.weight, model.head.weight)


def test_an_initial_weight_depends_on_seed_name_and_shape_alone():
    model, deeper = build_model("preln", GQA, seed=4), build_model("preln", ModelShape(5, 16, 4, 2, d_ff=24, vocab_size=29), seed=4)
    name = "blocks.2.attention.q.weight"
    weight = model.get_parameter(name)
    assert torch.equal(weight, deeper.get_parameter(name))
    assert torch.equal(weight, initial_matrix(name, weight.shape, 4))
    others = [(name, (16, 16), 5), ("blocks.1.attention.q.weight", (16, 16), 4), (name, (16, 17), 4)]
    assert not any(torch.equal(initial_matrix(n, torch.Size(size), s)[:, :16], weight) for n, size, s in others)


def test_building_neither_uses_nor_moves_the_random_state():
    before = torch.get_rng_state()
    first = build_model("mhc", GQA).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    second = build_model("mhc", GQA).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
