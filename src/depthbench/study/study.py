"""A study: what to compare. A frozen description that expands into cells; it holds no state."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.residual.registry import find_design, load_module, make_residual, read_options, source_of
from depthbench.shape import Budget, ModelShape, solve_all
from depthbench.study.cell import Cell, DataPin, DesignChoice
from depthbench.train.recipe import Recipe, steps_for

PLACEHOLDER_RATE = 1e-3


@dataclass(frozen=True)
class Study:
    """Designs × shapes × learning rates × seeds at one budget, one recipe and one set of data.

    Shapes are solved from `budget` at each of `n_layers`, or given outright in `shapes`. The number of updates is
    `recipe.steps`, or with `tokens_per_parameter` follows from the budget, once for the whole study. The recipe's learning rate
    is replaced by each of `learning_rates`.
    """

    name: str
    designs: tuple[str, ...]
    learning_rates: tuple[float, ...]
    recipe: Recipe
    budget: Budget | None = None
    n_layers: tuple[int, ...] = ()
    shapes: tuple[ModelShape, ...] = ()
    seeds: tuple[int, ...] = (0,)
    tokens_per_parameter: float | None = None
    data: str = "stdlib"
    tokenizer: str = "bytes"
    summary: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("designs", "learning_rates", "seeds"):
            values = getattr(self, name)
            if not values:
                raise UserError(f"study {self.name}: {name} is empty; give at least one")
            if len(set(values)) != len(values):
                raise UserError(f"study {self.name}: {name} repeat: {' '.join(map(str, values))}; give each once")
        for seed in self.seeds:
            if not 0 <= seed < 2**63:
                raise UserError(f"study {self.name}: seeds must be at least 0 and below 2**63, got {seed}")
        if bool(self.shapes) == bool(self.n_layers):
            raise UserError(f"study {self.name}: give either shapes, or a budget and n_layers")
        if self.n_layers and self.budget is None:
            raise UserError(f"study {self.name}: n_layers need a budget to solve the widths from")
        for rate in self.learning_rates:
            replace(self.recipe, learning_rate=rate)  # refuses what is not a positive finite number

    def solved_shapes(self) -> list[ModelShape]:
        """The shapes, in the order given."""
        if self.shapes:
            return list(self.shapes)
        assert self.budget is not None
        return solve_all(self.budget, self.n_layers)

    def steps(self) -> int:
        """Updates of every cell."""
        if self.tokens_per_parameter is None:
            return self.recipe.steps
        shapes = self.solved_shapes()
        if self.budget is not None and self.budget.match == "total":
            parameters = self.budget.count
        else:
            parameters = sum(shape.total_parameters for shape in shapes) / len(shapes)
        return steps_for(self.tokens_per_parameter, parameters, self.recipe.batch_size, shapes[0].context)

    def choices(self) -> list[DesignChoice]:
        """The designs, checked to exist and to accept their options."""
        found = []
        for text in self.designs:
            choice = DesignChoice.parse(text)
            make_residual(choice.name, self.solved_shapes()[0], dict(choice.options))
            filled = read_options(find_design(choice.name), choice.name, dict(choice.options))
            found.append(replace(choice, options=tuple((key, getattr(filled, key)) for key, _ in choice.options)))
        return found

    def cells(self, data: DataPin) -> list[Cell]:
        """Every run of the study, over one set of tokens."""
        recipe = replace(self.recipe, steps=self.steps())
        return list(self._cells(recipe, data))

    def _cells(self, recipe: Recipe, data: DataPin) -> Iterator[Cell]:
        shapes = self.solved_shapes()
        for choice in self.choices():
            source = source_of(choice.name)
            code = hashlib.sha256(source).hexdigest() if source else ""
            for shape in shapes:
                for rate in self.learning_rates:
                    for seed in self.seeds:
                        yield Cell(choice, code, shape, replace(recipe, learning_rate=rate), seed, data)


def study_from_file(text: str) -> Study:
    """The study of `my_study.py:study`: a `Study`, or a function without arguments that returns one."""
    path, _, name = text.rpartition(":")
    module = load_module(Path(path), f"a study is given as my_study.py:study, got {text!r}")
    if not hasattr(module, name):
        raise UserError(f"{path} has no {name!r}; define `def {name}() -> Study`")
    value: Any = getattr(module, name)
    if callable(value) and not isinstance(value, Study):
        if inspect.signature(value).parameters:
            raise UserError(f"{text} takes arguments; a study function takes none")
        try:
            value = value()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{text} raised {type(error).__name__}: {error}") from error
    if not isinstance(value, Study):
        raise UserError(f"{text} gave {type(value).__name__}, and must give a depthbench.Study")
    return value
