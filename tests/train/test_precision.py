"""bf16 autocast reaches the sublayers and the head, and nothing else."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from depthbench.residual.attnres import DepthMix
from depthbench.residual.hc import HCLink
from depthbench.residual.mhc import MHCLink
from depthbench.residual.moda import MoDAState
from depthbench.residual.protocol import Link
from helpers import DESIGNS, random_model
from train.runs import RECIPE, SHAPE, newest, rows, stop_after, training

BF16 = replace(RECIPE, steps=4, precision="bf16")
MIXES = {
    "hc": (HCLink, "coefficients"),
    "mhc": (MHCLink, "coefficients"),
    "attnres": (DepthMix, "weights"),
    "attnres_block": (DepthMix, "weights"),
}


def tensors_of(state):
    """The tensors of a residual state. MoDA's depth cache is not among them: it holds keys and values, as attention makes them."""
    if isinstance(state, torch.Tensor):
        return [state]
    return tensors_of(state.x) if isinstance(state, MoDAState) else [tensor for part in state or () for tensor in tensors_of(part)]


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
def test_states_coefficients_loss_and_weights_stay_fp32(token_data, tmp_path, monkeypatch, design):
    run = training(tmp_path, token_data, design, recipe=BF16, should_stop=stop_after(3))
    seen, sublayers, mixes, losses = watch_states(run.model), [], [], []
    assert len(forbid_autocast(run.model)) >= SHAPE.n_sublayers
    for block in run.model.blocks:
        for part in (block.attention.q, block.mlp.down):
            part.register_forward_hook(lambda _, given, y: sublayers.append(y.dtype))
    if design in MIXES:
        owner, name = MIXES[design]
        real = getattr(owner, name)

        def spied(self, state):
            found = real(self, state)
            mixes.extend((tensor.dtype, torch.is_autocast_enabled("cpu")) for tensor in tensors_of(found))
            return found

        monkeypatch.setattr(owner, name, spied)
    cross_entropy = F.cross_entropy
    monkeypatch.setattr(
        F, "cross_entropy", lambda logits, *rest, **named: losses.append(logits.dtype) or cross_entropy(logits, *rest, **named)
    )
    run.run()

    assert set(sublayers) == {torch.bfloat16}  # autocast was on
    assert {tensor.dtype for tensor in seen} == {torch.float32}
    assert set(losses) == {torch.float32}
    assert set(mixes) == ({(torch.float32, False)} if design in MIXES else set())
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


@pytest.mark.parametrize("design", ["attnres", "attnres_block", "hc", "mhc"])
def test_without_sublayers_autocast_changes_no_bit_of_the_hidden_state(design):
    """What is left is the design's own arithmetic, open to close, with random values in every parameter."""
    model = random_model(design, SHAPE).float()
    for block in model.blocks:
        block.attention.forward = lambda x, rope: x.flip(-1)
        block.mlp.forward = lambda x: x.roll(1, -1)
    x = torch.arange(32).view(2, 16)
    with torch.no_grad():
        plain = model.hidden(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(model.hidden(x), plain)
