"""bf16 autocast reaches the sublayers and the head, and nothing else."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from depthbench.model.backbone import Heads
from depthbench.residual.moda import MoDAState
from depthbench.residual.protocol import Link
from helpers import DESIGNS, random_model
from train.runs import RECIPE, SHAPE, newest, rows, stop_after, training

BF16 = replace(RECIPE, steps=4, precision="bf16")


def tensors_of(state):
    """The tensors of a residual state. MoDA's depth cache is not among them: it holds keys and values, as attention makes them."""
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, MoDAState):
        return [state.x]
    parts = state if isinstance(state, tuple) else getattr(state, "__dict__", {}).values()
    return [tensor for part in parts for tensor in tensors_of(part)]


def watch_states(model):
    """Every state that a block receives or returns, and what the final norm receives."""
    seen = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.extend(tensors_of(given[0])))
        block.register_forward_hook(lambda _, given, state: seen.extend(tensors_of(state)))
    model.norm.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model.norm.register_forward_hook(lambda _, given, normed: seen.append(normed))
    return seen


def forbid_autocast(model):
    """Fail when a design's own arithmetic runs under autocast: its norms and mixes. A design's linear maps are sublayer work."""

    def off(module, given):
        assert not torch.is_autocast_enabled("cpu"), type(module).__name__

    owners = [model.residual, *(link for block in model.blocks for link in (block.attention_link, block.mlp_link))]
    parts = [part for owner in owners for part in owner.modules() if not isinstance(part, Link | nn.Linear)]
    for part in parts:
        part.register_forward_pre_hook(off)
    return parts


@pytest.mark.parametrize("design", DESIGNS)
def test_states_norms_loss_and_weights_stay_fp32(token_data, tmp_path, monkeypatch, design):
    run = training(tmp_path, token_data, design, recipe=BF16, should_stop=stop_after(3))
    seen, sublayers, losses = watch_states(run.model), [], []
    assert len(forbid_autocast(run.model)) >= SHAPE.n_sublayers
    for block in run.model.blocks:
        for part in (block.attention.q, block.mlp.down):
            part.register_forward_hook(lambda _, given, y: sublayers.append(y.dtype))
    cross_entropy = F.cross_entropy
    monkeypatch.setattr(
        F, "cross_entropy", lambda logits, *rest, **named: losses.append(logits.dtype) or cross_entropy(logits, *rest, **named)
    )
    run.run()

    assert set(sublayers) == {torch.bfloat16}  # autocast was on
    assert {tensor.dtype for tensor in seen} == {torch.float32}
    assert set(losses) == {torch.float32}
    assert {parameter.dtype for parameter in run.model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in run.model.parameters() if parameter.grad is not None} == {torch.float32}
    assert {tensor.dtype for tensor in load_file(newest(tmp_path)).values()} == {torch.float32}


@pytest.mark.parametrize("design", DESIGNS)
def test_bf16_losses_are_close_to_fp32_and_not_the_same(token_data, tmp_path, design):
    half = training(tmp_path / "half", token_data, design, recipe=BF16).run()
    full = training(tmp_path / "full", token_data, design, recipe=replace(BF16, precision="fp32")).run()
    for name in ("loss", "gradient_norm"):
        pairs = [(a[name], b[name]) for a, b in zip(rows(tmp_path / "half"), rows(tmp_path / "full"), strict=True)]
        assert all(a == pytest.approx(b, rel=0.002 if name == "loss" else 0.05) for a, b in pairs)
    assert half.validation.loss == pytest.approx(full.validation.loss, rel=0.002)
    assert half.validation.loss != full.validation.loss


def fp32_heads(attention, x):
    """Heads that no product has touched: queries, keys and values are parts of `x` itself."""
    part = x[..., : attention.n_kv_heads * attention.head_dim]
    qkv = torch.cat((x.flip(-1), part, part.roll(1, -1)), dim=-1)
    return Heads(qkv.view(*qkv.shape[:-1], -1, attention.head_dim).transpose(1, 2), attention.n_heads, attention.n_kv_heads)


def without_sublayers(model):
    """Put fp32 stand-ins in the place of attention and feed-forward: what is left is the arithmetic of the design."""
    for block in model.blocks:
        block.attention.forward = lambda x, rope: x.flip(-1)
        block.attention.attend = lambda heads, rope, *own: heads.qkv_BNTC[:, : heads.n_heads].transpose(1, 2).flatten(2).float()
        block.attention.heads = partial(fp32_heads, block.attention)
        block.mlp.forward = lambda x: x.roll(1, -1)
    return model


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("design", DESIGNS)
def test_without_sublayers_autocast_changes_no_bit(design, training):
    """Mixing coefficients included: open to close and, in training, back again, with random values in every parameter."""
    x, hidden, gradients = torch.arange(32).view(2, 16), [], []
    for enabled in (True, False):
        model = without_sublayers(random_model(design, SHAPE).float()).train(training)
        with torch.set_grad_enabled(training), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            hidden.append(model.hidden(x))
        if training:
            hidden[-1].square().sum().backward()
            gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert hidden[0].dtype == torch.float32 and torch.equal(*hidden)
    if training:
        assert "embedding.weight" in gradients[0] and gradients[0].keys() == gradients[1].keys()
        assert all(torch.equal(gradient, gradients[1][name]) for name, gradient in gradients[0].items())
