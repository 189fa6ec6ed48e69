"""AdamW with the decay exemptions that each design declares."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from depthbench.model.parallel import is_shard
from depthbench.train.recipe import Recipe


def exempt_names(model: nn.Module, decay: str) -> list[str]:
    """Names of the parameters that weight decay leaves alone: those in a module's `no_decay`, and with `decay="matrices"`
    every tensor of fewer than two dimensions.
    """
    # by identity: a parameter that two modules share has one name here, and either may declare it
    declared = {id(getattr(module, name, None)) for module in model.modules() for name in getattr(module, "no_decay", ())}
    return [n for n, p in model.named_parameters() if id(p) in declared or (decay == "matrices" and p.ndim < 2)]


def make_optimizer(model: nn.Module, recipe: Recipe, fused: bool | None) -> torch.optim.AdamW:
    """AdamW over two groups, decayed and exempt, in the order of the model's parameters; shards and whole tensors apart, since
    fused kernels take one kind at a time.
    """
    exempt = set(exempt_names(model, recipe.decay))
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {
            "params": [p for n, p in named if (n in exempt) == free and is_shard(p) == sharded],
            "weight_decay": 0.0 if free else recipe.weight_decay,
        }
        for free in (False, True)
        for sharded in (False, True)
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.adam_eps,
        fused=named[0][1].device.type in ("cpu", "cuda") if fused is None else fused,
    )


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name, `optimizer/NAME/KEY`: independent of group order and of process counts."""
    return {
        f"optimizer/{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, on each parameter's device (the step counter stays where the optimizer wants it)."""
    for name, parameter in model.named_parameters():
        prefix = f"optimizer/{name}/"
        state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if state:
            fused = optimizer.defaults.get("fused")
            optimizer.state[parameter] = {
                key: value.to(parameter.device) if key != "step" or fused else value for key, value in state.items()
            }
