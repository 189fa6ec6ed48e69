"""Does a user's design follow the protocol? Tried on a tiny model, so that a mistake is one clear line and not a traceback.

Beyond shapes it is asked what would spoil a study in silence: initial values that do not follow the seed, passes that differ,
states changed in place, positions or sequences that see each other, formulas that do not fit what is built.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from depthbench.errors import UserError, unknown
from depthbench.model.backbone import Attention, SwiGLU
from depthbench.residual.protocol import Residual
from depthbench.residual.trial import BATCH, TINY, Trial, build, need_number, shown
from depthbench.shape import ModelShape

ROLES = ("q", "k", "v", "o", "gate", "up", "down")
CHANGED = 2  # the position that is changed to see what else moves
NUDGE = 0.01  # takes parameters off initial values, such as 0, that would hide what they do


@cache
def check_protocol(design: type[Residual], options: Any) -> None:
    """Run `design` on a tiny model. Raises `UserError` that names the method, what it returned and what it should return."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        trial = build(design, TINY, options)
        _check_initial_values(trial, build(design, TINY, options))
        check_trial(trial)


def check_trial(trial: Trial) -> None:
    """What a design that is built must satisfy, in the mode, training or not, that it is in. Moves its parameters a little."""
    _check_exemptions(trial)
    _check_numbers(trial)
    _check_passes(trial)
    _check_mixing(trial)


@cache
def check_builds(design: type[Residual], shape: ModelShape, options: Any) -> None:
    """Build `design` for `shape` without storage, as counting does. Raises `UserError` if that fails."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        build(design, shape, options)


def _check_initial_values(trial: Trial, again: Trial) -> None:
    """They follow torch's generator, and are not set where the common init overwrites them."""
    for (name, value), (_, other) in zip(trial.named_parameters(), again.named_parameters(), strict=True):
        if not torch.equal(value, other):
            raise UserError(f"{trial.name}: {name} starts differently in two builds of one seed; draw initial values with torch")
    for module in trial.parts.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and 2 * len(set(module.weight.flatten().tolist())) < module.weight.numel():
            raise UserError(
                f"{trial.name} sets the weight of an nn.{type(module).__name__}, which the common random init would overwrite;"
                " use an nn.Parameter to choose initial values"
            )


def _check_exemptions(trial: Trial) -> None:
    """What a link or the design names in `no_decay` is a parameter of its own."""
    modules = (trial.residual, *trial.links)
    own = {name for module in modules for name, _ in module.named_parameters(recurse=False)}
    for module in modules:
        if not isinstance(module.no_decay, tuple):
            raise UserError(f"{type(module).__name__}.no_decay is {module.no_decay!r}; it must be a tuple of parameter names")
        for name in module.no_decay:
            if name not in own:
                raise unknown(f"parameter in {type(module).__name__}.no_decay", name, own)


def _check_numbers(trial: Trial) -> None:
    """Scales and FLOPs are numbers, and a formula for the parameters agrees with what is built."""
    residual = trial.residual
    for role in ROLES:
        method = f'weight_scale("{role}")'
        need_number(f"{trial.name}.{method}", trial.attempt(method, lambda role=role: residual.weight_scale(role)))  # type: ignore[misc]
    need_number(f"{trial.name}.own_flops", trial.attempt("own_flops", lambda: residual.own_flops(TINY.context)))
    stated = trial.attempt("own_parameters", residual.own_parameters)
    built = sum(parameter.numel() for parameter in trial.parts.parameters()) - TINY.n_sublayers * TINY.d_model
    if stated is not None and stated != built:
        raise UserError(
            f"{trial.name}.own_parameters returned {shown(stated)} for {TINY.n_layers} layers of width {TINY.d_model}, but {built}"
            " were built beyond Pre-LN's gains; correct it or return None"
        )


def _check_passes(trial: Trial) -> None:
    """Every step returns what it should, a second pass gives the same, and finite gradients flow back."""
    embedding, attention, mlp = _embedding(), Attention(TINY), SwiGLU(TINY)
    found = trial.run(embedding, attention, mlp)
    if not torch.equal(found.hidden, trial.run(embedding, attention, mlp).hidden):
        raise UserError(f"{trial.name} gives other values in a second pass over the same input; a pass must not draw or remember")
    widest = max(found.sizes) / (BATCH * TINY.context)
    stated = need_number(f"{trial.name}.state_elements", trial.attempt("state_elements", trial.residual.state_elements))
    if stated != widest:
        raise UserError(f"{trial.name}.state_elements returned {stated:g}, but the state holds up to {widest:g} numbers a token")
    if found.sizes[-1] > found.sizes[1] and not trial.residual.state_grows:
        raise UserError(f"the state of {trial.name} grows from sublayer to sublayer; say so in the class: state_grows = True")
    trial.attempt("close, in its backward pass,", found.hidden.square().sum().backward)
    for name, parameter in trial.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            raise UserError(f"{trial.name}: the gradient of {name} is not finite for a normal embedding")


@torch.no_grad()
def _check_mixing(trial: Trial) -> None:
    """A changed token moves nothing earlier and no other sequence; with attention silent, nothing but itself."""
    for parameter in trial.parts.parameters():
        parameter.add_(NUDGE * torch.rand_like(parameter))
    embedding, attention, mlp = _embedding(), Attention(TINY), SwiGLU(TINY)
    changed = embedding.clone()
    changed[0, CHANGED] += 1.0
    for silent in (False, True):
        if silent:
            attention.o.weight.zero_()
        before, after = (trial.run(x, attention, mlp).hidden for x in (embedding, changed))
        moved = (before != after).any(-1)
        if bool(moved[1:].any()):
            raise UserError(f"{trial.name} mixes sequences: changing one of a batch changed the hidden state of another")
        if bool(moved[0, :CHANGED].any()):
            raise UserError(f"{trial.name} mixes positions: changing a token changed the hidden state of earlier ones")
        if silent and bool(moved[0, CHANGED + 1 :].any()):
            raise UserError(f"{trial.name} mixes positions: without attention, changing a token changed later ones")


def _embedding() -> Tensor:
    return torch.randn(BATCH, TINY.context, TINY.d_model)
