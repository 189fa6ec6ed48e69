"""Changing a study from the command line: each override replaces one thing, and contradictions are errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from depthbench.errors import UserError
from depthbench.study.study import Study


@dataclass(frozen=True)
class Overrides:
    """What to change; None or empty leaves it as the study has it."""

    designs: Sequence[str] = ()
    n_layers: Sequence[int] = ()
    learning_rates: Sequence[float] = ()
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
    changes: dict[str, Any] = {
        name: tuple(getattr(wanted, name)) for name in ("designs", "learning_rates", "seeds") if getattr(wanted, name)
    }
    recipe = {
        name: getattr(wanted, name)
        for name in ("steps", "batch_size", "validation_windows", "precision")
        if getattr(wanted, name) is not None
    }
    if recipe:
        changes["recipe"] = replace(study.recipe, **recipe)
    if wanted.steps is not None:
        changes["tokens_per_parameter"] = None
    if wanted.tokens_per_parameter is not None:
        changes["tokens_per_parameter"] = wanted.tokens_per_parameter
    changes |= _shape_changes(study, wanted)
    return replace(study, **changes) if changes else study


def _shape_changes(study: Study, wanted: Overrides) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if wanted.n_layers:
        if study.budget is None:
            raise UserError(f"study {study.name} lists its shapes, so --n-layers has no budget to solve widths from")
        changes["n_layers"] = tuple(wanted.n_layers)
    if wanted.context is not None:
        if study.budget is not None:
            changes["budget"] = replace(study.budget, context=wanted.context)
        changes["shapes"] = tuple(replace(shape, context=wanted.context) for shape in study.shapes)
    return changes
