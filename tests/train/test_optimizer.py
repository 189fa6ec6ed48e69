"""Which parameters decay, by name and by what the optimizer does to them; its state comes back as it was."""

import pytest
import torch
from torch import nn

from depthbench import ModelShape, build_model
from depthbench.train.optimizer import exempt_names, load_optimizer_tensors, make_optimizer, optimizer_tensors
from depthbench.train.recipe import Recipe
from helpers import DESIGNS, GQA

ONE_LAYER = ModelShape(1, 16, 4, vocab_size=29, context=9)
RECIPE = Recipe(steps=10, batch_size=4, learning_rate=0.01)

GAINS = ["blocks.0.attention_link.norm.gain", "blocks.0.mlp_link.norm.gain", "norm.gain"]
HC_STATIC = [f"blocks.0.{link}.{name}" for link in ("attention_link", "mlp_link") for name in ("A0", "b0")]
HC_VECTORS = [f"blocks.0.{link}.{name}" for link in ("attention_link", "mlp_link") for name in ("a", "wb", "c")]
MHC = [f"blocks.0.{link}.{name}" for link in ("attention_link", "mlp_link") for name in ("bias", "g_pre", "g_post", "g_res")]
MIXES = [f"{mix}.{name}" for mix in ("blocks.0.mlp_link.mix", "residual.mix") for name in ("query", "key_gain")]

EXEMPT = {design: [] for design in DESIGNS} | {"hc": HC_STATIC, "mhc": MHC}
EXEMPT_VECTORS = {
    "preln": GAINS,
    "sandwich": [*GAINS, "blocks.0.attention_link.out_norm.gain", "blocks.0.mlp_link.out_norm.gain"],
    "lns": GAINS,
    "deepnorm": GAINS,
    "keel": [*GAINS, "blocks.0.mlp_link.post_norm.gain"],
    "hc": [*GAINS, *HC_STATIC, *HC_VECTORS],
    "mhc": [*GAINS, *MHC],
    "attnres": [*GAINS, *MIXES],
    "attnres_block": [*GAINS, *MIXES],
    "moda": GAINS,
}


@pytest.mark.parametrize("design", DESIGNS)
def test_what_decay_spares_by_name(design):
    model = build_model(design, ONE_LAYER)
    assert sorted(exempt_names(model, "all")) == sorted(EXEMPT[design])
    assert sorted(exempt_names(model, "matrices")) == sorted(EXEMPT_VECTORS[design])


@pytest.mark.parametrize("design", DESIGNS)
def test_every_layer_is_spared_alike(design):
    found = exempt_names(build_model(design, GQA), "all")
    assert sorted(found) == sorted(name.replace("blocks.0", f"blocks.{i}") for name in EXEMPT[design] for i in range(GQA.n_layers))


@pytest.mark.parametrize("decay", ["all", "matrices"])
@pytest.mark.parametrize("design", DESIGNS)
def test_an_update_without_gradient_shrinks_all_but_the_spared(design, decay):
    model = build_model(design, ONE_LAYER)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, Recipe(10, 4, 0.5, weight_decay=0.2, decay=decay), None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    spared = (EXEMPT if decay == "all" else EXEMPT_VECTORS)[design]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] * (1.0 if name in spared else 0.9), rtol=1e-6, atol=0)


def test_a_shared_parameter_is_spared_if_any_of_its_modules_says_so():
    class Sparing(nn.Module):
        no_decay = ("weight", "not_there")

        def __init__(self, weight):
            super().__init__()
            self.weight = weight

    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model.append(Sparing(model[0].weight))
    assert exempt_names(model, "all") == ["0.weight"]


def steps(model, optimizer, n, seed):
    """`n` updates with random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("fused", [None, False, True])
def test_the_state_comes_back_bit_for_bit(fused):
    model, other = build_model("hc", ONE_LAYER), build_model("hc", ONE_LAYER, seed=1)
    optimizer, fresh = (make_optimizer(m, RECIPE, fused) for m in (model, other))
    steps(model, optimizer, 3, seed=0)
    saved = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    assert len(saved) == 3 * len(list(model.parameters()))
    assert float(saved["optimizer/blocks.0.attention_link.A0/step"]) == 3
    other.load_state_dict(model.state_dict())
    load_optimizer_tensors(other, fresh, saved)
    steps(model, optimizer, 3, seed=1)
    steps(other, fresh, 3, seed=1)
    assert torch.equal(parameters(model), parameters(other))


def test_before_the_first_update_there_is_no_state():
    model = build_model("preln", ONE_LAYER)
    optimizer = make_optimizer(model, RECIPE, None)
    assert optimizer_tensors(model, optimizer) == {}
    load_optimizer_tensors(model, optimizer, {"model/norm.gain": torch.ones(16)})
    assert not optimizer.state


def test_fused_and_plain_adamw_agree_and_read_each_others_state():
    models = [build_model("mhc", ONE_LAYER) for _ in range(2)]
    fused, plain = (make_optimizer(model, RECIPE, on) for model, on in zip(models, (True, False), strict=True))
    steps(models[0], fused, 5, seed=0)
    steps(models[1], plain, 5, seed=0)
    torch.testing.assert_close(parameters(models[0]), parameters(models[1]), rtol=1e-5, atol=1e-7)
    there, back = optimizer_tensors(models[0], fused), optimizer_tensors(models[1], plain)
    load_optimizer_tensors(models[1], plain, there)
    load_optimizer_tensors(models[0], fused, back)
    steps(models[0], fused, 5, seed=1)
    steps(models[1], plain, 5, seed=1)
    torch.testing.assert_close(parameters(models[0]), parameters(models[1]), rtol=1e-5, atol=1e-6)
