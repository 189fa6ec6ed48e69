"""A study: what to compare. A frozen description that expands into cells; it holds no state."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.residual.registry import find_design, load_module, make_residual, read_options, source_of
from depthbench.shape import Budget, ModelShape
from depthbench.study.cell import Cell, DataPin, DesignChoice
from depthbench.study.matching import matched_shape
from depthbench.suites import Tier
from depthbench.train.recipe import Recipe, steps_for

LR_POLICIES = ("fixed", "per_design", "per_cell")
MATCHES = ("shape", "total")
BEYOND_BUDGET = 0.25  # a shape further off its budget than this belongs to another comparison; nearer ones are warned of


@dataclass(frozen=True)
class Study:
    """Designs × shapes × learning rates × seeds at one budget (or one for each of `tiers`), one recipe and one set of data.

    Shapes are solved from `budget` at each of `n_layers`, or given outright in `shapes`, or come from `tiers`. The number of
    updates is the tier's or `recipe.steps`, or with `tokens_per_parameter` follows from the budget, once for all shapes of a tier.
    The recipe's learning rate is replaced by those of `learning_rates`:

    - `lr_policy="fixed"`: every one of them is trained, with every seed;
    - `"per_cell"`: they are the grid of a search for every design and shape;
    - `"per_design"`: of one search for each design, at `base_n_layers` (0: the middle one of the shapes).

    A search trains its grid with the first seed, widens it by up to `widen` values on a side while the best lies on that edge, and
    then trains the best with all seeds. `match="total"` narrows `d_ff` for each design until the model has Pre-LN's total.
    `needs` says what to prepare where the data is not one of the default sources.
    """

    name: str
    designs: tuple[str, ...]
    learning_rates: tuple[float, ...]
    recipe: Recipe
    budget: Budget | None = None
    n_layers: tuple[int, ...] = ()
    shapes: tuple[ModelShape, ...] = ()
    tiers: tuple[Tier, ...] = ()
    seeds: tuple[int, ...] = (0,)
    tokens_per_parameter: float | None = None
    lr_policy: str = "fixed"
    widen: int = 3
    base_n_layers: int = 0
    match: str = "shape"
    data: str = "stdlib"
    tokenizer: str = "bytes"
    needs: str = field(default="", compare=False)
    summary: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("designs", "learning_rates", "seeds"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence):
                raise UserError(f"study {self.name}: {name} must be a tuple, got {values!r}")
            if not values:
                raise UserError(f"study {self.name}: {name} is empty; give at least one")
            if len(set(values)) != len(values):
                raise UserError(f"study {self.name}: {name} repeat: {' '.join(map(str, values))}; give each once")
        for seed in self.seeds:
            if not isinstance(seed, int) or not 0 <= seed < 2**63:
                raise UserError(f"study {self.name}: seeds must be whole numbers of at least 0 and below 2**63, got {seed!r}")
        for rate in self.learning_rates:
            replace(self.recipe, learning_rate=rate)  # refuses what is not a positive finite number
        self._check_shapes()
        self._check_policy()

    def _check_shapes(self) -> None:
        given = [bool(self.shapes), bool(self.n_layers), bool(self.tiers)]
        if sum(given) != 1:
            raise UserError(f"study {self.name}: give either shapes, or a budget and n_layers, or tiers")
        if self.n_layers and self.budget is None:
            raise UserError(f"study {self.name}: n_layers need a budget to solve the widths from")
        if self.budget is not None and not self.n_layers:
            raise UserError(f"study {self.name}: a budget needs n_layers to solve widths for; tiers and shapes bring their own")
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names):
            raise UserError(f"study {self.name}: tiers repeat: {' '.join(names)}; give each a name of its own")

    def _check_policy(self) -> None:
        for name, valid in (("lr_policy", LR_POLICIES), ("match", MATCHES)):
            if getattr(self, name) not in valid:
                raise UserError(f"study {self.name}: {name} must be {' or '.join(map(repr, valid))}, got {getattr(self, name)!r}")
        if self.widen < 0:
            raise UserError(f"study {self.name}: widen must be at least 0, got {self.widen}")
        if self.lr_policy != "fixed":
            if len(self.learning_rates) < 2:
                raise UserError(
                    f"study {self.name}: lr_policy {self.lr_policy} searches a grid and needs at least 2 learning_rates,"
                    f" got {self.learning_rates[0]:g} alone; give more, or lr_policy='fixed'"
                )
            if list(self.learning_rates) != sorted(self.learning_rates):
                raise UserError(f"study {self.name}: the grid of learning_rates must increase, got {self.learning_rates}")

    def all_tiers(self) -> list[Tier]:
        """The budgets with their layer counts; one without a name where the study has a single budget."""
        if self.tiers:
            return list(self.tiers)
        return [] if self.budget is None else [Tier("", self.budget, self.n_layers)]

    def sets(self) -> list[tuple[list[ModelShape], int]]:
        """The shapes that are compared with each other, in the order given, and the updates of each set: one set a tier.

        Raises `UserError` where a shape cannot come near its budget.
        """
        if self.shapes:
            return [(list(self.shapes), self._steps(None, self.shapes, 0))]
        found = []
        for tier in self.all_tiers():
            shapes = tier.shapes
            for shape in shapes:
                if abs(tier.budget.miss(shape)) > BEYOND_BUDGET:
                    raise UserError(
                        f"study {self.name}: {shape.n_layers} layers cannot meet the budget: the nearest width {shape.d_model} is"
                        f" {tier.budget.miss(shape):+.0%} off; choose other n_layers, fewer heads or another budget"
                    )
            found.append((shapes, self._steps(tier.budget, shapes, tier.steps)))
        return found

    def solved_shapes(self) -> list[ModelShape]:
        """The shapes of all tiers, in the order given."""
        return [shape for shapes, _ in self.sets() for shape in shapes]

    def _steps(self, budget: Budget | None, shapes: Sequence[ModelShape], steps: int) -> int:
        if self.tokens_per_parameter is None:
            return steps or self.recipe.steps
        if budget is not None and budget.match == "total":
            parameters = budget.count
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

    def groups(self, data: DataPin) -> list[list[Group]]:
        """For every design and tier, its shapes in order: what a learning-rate search is made for."""
        sets = self.sets()
        found = []
        for choice in self.choices():
            source = source_of(choice.name)
            code = hashlib.sha256(source).hexdigest() if source else ""
            for shapes, steps in sets:
                recipe = replace(self.recipe, steps=steps)
                fitting = [matched_shape(choice, shape) if self.match == "total" else shape for shape in shapes]
                found.append([Group(choice, code, shape, recipe, data) for shape in fitting])
        return found

    def cells(self, data: DataPin) -> list[Cell]:
        """The runs that are certain from the start: for `lr_policy="fixed"` all of them, for a search its first grid."""
        from depthbench.study.search import StudyWork

        return StudyWork(self, data).wanted()


@dataclass(frozen=True)
class Group:
    """One design at one shape: everything of a cell but its learning rate and seed."""

    design: DesignChoice
    design_hash: str
    shape: ModelShape
    recipe: Recipe
    data: DataPin

    def cell(self, rate: float, seed: int) -> Cell:
        """The cell at one learning rate and seed."""
        return Cell(self.design, self.design_hash, self.shape, replace(self.recipe, learning_rate=rate), seed, self.data)

    @property
    def label(self) -> str:
        """For people: `hc 6 × 96`."""
        return f"{self.design} {self.shape.n_layers} × {self.shape.d_model}"


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
