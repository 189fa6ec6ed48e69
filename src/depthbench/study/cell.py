"""A cell: one training run, fully described. Its folder name is readable and ends in a hash of its content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from depthbench.errors import UserError, unknown
from depthbench.files import content_hash
from depthbench.shape import ModelShape
from depthbench.train.recipe import Recipe

FORMAT = 1


@dataclass(frozen=True)
class DesignChoice:
    """A design by name, with options: `hc`, `hc[streams=2,dynamic=false]`, `mine.py:MyResidual`."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def parse(text: str) -> DesignChoice:
        """Read the text form. Raises `UserError` if it is malformed; whether the design exists is not asked here."""
        match = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]*)\])?", text.strip())
        if not match:
            raise UserError(f"cannot read design {text!r}; write it as hc or hc[streams=2,dynamic=false]")
        return DesignChoice(match[1], parse_options((match[2] or "").split(",")))

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return f"{self.name}[{','.join(f'{key}={_text(value)}' for key, value in self.options)}]"

    @property
    def short(self) -> str:
        """For folder names: no path, no separators."""
        name = self.class_name or self.name
        return re.sub(r"[^A-Za-z0-9_]+", "-", "-".join([name, *(f"{k}-{_text(v)}" for k, v in self.options)])).strip("-")

    @property
    def class_name(self) -> str:
        """The class of a user's design, without its file; empty for designs that have a name of their own."""
        return self.name.rpartition(":")[2] if ":" in self.name else ""


def parse_options(pairs: list[str] | tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    """`["streams=2"]` to sorted pairs; the values stay text until the design reads them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.strip().partition("=")
        if not pair.strip():
            continue
        if not equals or not key or not value:
            raise UserError(f"cannot read design option {pair!r}; write NAME=VALUE, for instance streams=2")
        if key in found:
            raise UserError(f"design option {key!r} is given twice")
        found[key] = value
    return tuple(sorted(found.items()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class DataPin:
    """Which tokens: how to get them (`source`, `tokenizer`) and what they must be (`fingerprint` of the token files)."""

    source: str
    tokenizer: str
    fingerprint: str
    validation_sha256: str


@dataclass(frozen=True)
class Cell:
    """One run: design, shape, seed, recipe (with its learning rate) and data. `design_hash` is the sha256 of the file that a design
    of a user's is defined in, empty for a built-in one.
    """

    design: DesignChoice
    design_hash: str
    shape: ModelShape
    recipe: Recipe
    seed: int
    data: DataPin

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.recipe.steps * self.recipe.batch_size * self.shape.context

    def content(self) -> dict[str, Any]:
        """The cell as JSON content."""
        content = asdict(self)
        content["design"] = {"name": self.design.name, "options": dict(self.design.options)}
        return {"format": FORMAT, **content}

    @cached_property
    def identity(self) -> str:
        """sha256 of everything that decides the result. Where a user's design file or the data lies is not part of it."""
        content = self.content()
        content["data"] = {"fingerprint": self.data.fingerprint}
        if self.design.class_name:
            content["design"]["name"] = self.design.class_name
        return content_hash(content)

    @property
    def name(self) -> str:
        """The folder name, such as `hc-6x96-lr0.002-s0-1a2b3c4d5e`."""
        return f"{self.design.short}-{self.shape.name}-lr{self.recipe.learning_rate:g}-s{self.seed}-{self.identity[:10]}"

    @property
    def label(self) -> str:
        """For people: `hc 6 × 96 lr 0.002 seed 0`."""
        shape = f"{self.shape.n_layers} × {self.shape.d_model}"
        return f"{self.design} {shape} lr {self.recipe.learning_rate:g} seed {self.seed}"


def cell_from(content: Mapping[str, Any], where: str) -> Cell:
    """Read what `Cell.content` gave; `where` names the file in errors.

    Raises `UserError` for a newer format, and for unknown or missing keys.
    """
    content = dict(content)
    found = content.pop("format", None)
    if not isinstance(found, int):
        raise UserError(f"{where} does not describe a cell: it has no format number; delete its folder to train it anew")
    if found > FORMAT:
        raise UserError(f"{where} was made by a newer DepthBench (format {found}, this one reads {FORMAT}); upgrade to use it")
    try:
        design = DesignChoice(content["design"]["name"], tuple(sorted(content["design"]["options"].items())))
        return Cell(
            design=design,
            design_hash=content["design_hash"],
            shape=_fill(ModelShape, content["shape"], where),
            recipe=_fill(Recipe, content["recipe"], where),
            seed=content["seed"],
            data=_fill(DataPin, content["data"], where),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{where} does not describe a cell ({error!r}); restore it or delete its folder") from error


def _fill(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    valid = {item.name for item in fields(kind)}
    for key in values:
        if key not in valid:
            raise unknown(f"key in {where}", key, valid)
    return kind(**values)
