"""Changing a study from the command line: each override replaces one thing, and contradictions are errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from depthbench.errors import UserError
from depthbench.study.study import Study

OF_THE_STUDY = ("designs", "learning_rates", "seeds", "lr_policy", "widen", "match")
OF_THE_RECIPE = ("steps", "batch_size", "validation_windows", "precision")


@dataclass(frozen=True)
class Overrides:
    """What to change; None or empty leaves it as the study has it."""

    designs: Sequence[str] = ()
    n_layers: Sequence[int] = ()
    learning_rates: Sequence[float] = ()
    lr_policy: str | None = None
    widen: int | None = None
    match: str | None = None
    seeds: Sequence[int] = ()
    steps: int | None = None
    tokens_per_parameter: float | None = None
    batch_size: int | None = None
    context: int | None = None
    validation_windows: int | None = None
    precision: str | None = None


def override(study: Study, wanted: Overrides) -> Study:
    """The study with the overrides in place. Raises `UserError` for contradictions and for values that make no study."""
    if wanted.steps is not None and wanted.tokens_per_parameter is not None:
        raise UserError("--steps and --tokens-per-parameter both set the length of training; give one")
    if wanted.widen is not None and (wanted.lr_policy or study.lr_policy) == "fixed":
        raise UserError("--widen is for a search of learning rates, and lr_policy is fixed; add --lr-policy per_cell or per_design")
    changes = {name: value for name in OF_THE_STUDY if (value := _given(wanted, name)) is not None}
    recipe = {name: value for name in OF_THE_RECIPE if (value := _given(wanted, name)) is not None}
    if recipe:
        changes["recipe"] = replace(study.recipe, **recipe)
    if wanted.steps is not None:
        changes["tokens_per_parameter"] = None
        changes["tiers"] = tuple(replace(tier, steps=wanted.steps) for tier in study.tiers)
    if wanted.tokens_per_parameter is not None:
        changes["tokens_per_parameter"] = wanted.tokens_per_parameter
    changes |= _shape_changes(study, wanted, changes.get("tiers", study.tiers))
    return replace(study, **changes) if changes else study


def _given(wanted: Overrides, name: str) -> Any:
    value = getattr(wanted, name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value) or None
    return value


def _shape_changes(study: Study, wanted: Overrides, tiers: Sequence[Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if wanted.n_layers:
        if study.tiers:
            raise UserError(
                f"study {study.name} has a list of layer counts for each of its budgets; --n-layers cannot replace them all"
            )
        if study.budget is None:
            raise UserError(f"study {study.name} lists its shapes, so --n-layers has no budget to solve widths from")
        changes["n_layers"] = tuple(wanted.n_layers)
        if study.base_n_layers not in wanted.n_layers:
            changes["base_n_layers"] = 0
    if wanted.context is not None:
        if study.budget is not None:
            changes["budget"] = replace(study.budget, context=wanted.context)
        changes["shapes"] = tuple(replace(shape, context=wanted.context) for shape in study.shapes)
        changes["tiers"] = tuple(replace(tier, budget=replace(tier.budget, context=wanted.context)) for tier in tiers)
    return changes
