"""The options of a design: a frozen dataclass of plain values, filled from keywords or from the text of a command line."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from depthbench.errors import UserError, unknown
from depthbench.residual.protocol import Residual

PLAIN = (bool, int, float, str)
TAKEN = ("design", "shape", "seed", "device")  # keywords of build_model


def need_options(design: type[Residual], name: str) -> None:
    """Raise `UserError` unless `design.Options` is a frozen dataclass of plain values with fitting defaults."""
    kind = design.Options
    if not (isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, Hashable)):
        shown = kind.__name__ if isinstance(kind, type) else repr(kind)
        raise UserError(f"Options of {name} must be a class under @dataclass(frozen=True), got {shown}")
    try:
        hints = get_type_hints(kind)
    except Exception as error:
        raise UserError(f"Options of {name} have a type that cannot be read: {error}") from error
    for item in fields(kind):
        what = f"option {item.name} of {name}"
        if item.name in TAKEN:
            raise UserError(f"{what} needs another name: {', '.join(TAKEN)} are keywords of build_model")
        if item.default is MISSING:
            raise UserError(f"{what} has no default value; give it one, so that the design can be built without options")
        if isinstance(item.default, str) != isinstance(read_value(f"the default of {what}", item.default, hints[item.name]), str):
            raise UserError(f"the default of {what} is text, {item.default!r}, and its type is not")


def read_options(design: type[Residual], name: str, given: dict[str, Any]) -> Any:
    """The design's options dataclass filled from `given`. Unknown names and values of the wrong type are errors."""
    valid = {item.name for item in fields(design.Options)}
    hints = get_type_hints(design.Options)
    for key in given:
        if key not in valid:
            if not valid:
                raise UserError(f"design {name} has no options, got {key!r}")
            raise unknown(f"option of {name}", key, valid)
    values = {key: read_value(f"option {key} of {name}", value, hints[key]) for key, value in given.items()}
    try:
        return design.Options(**values)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"options of {name}: {error}") from error


def read_value(what: str, value: Any, kind: Any) -> Any:
    """`value` as the type `kind`: bool, int, float, str, a Literal of these, or one of these or None; text is converted.

    Raises `UserError` if it is not one.
    """
    if get_origin(kind) is Literal:
        for valid in get_args(kind):
            if value == valid or value == str(valid):
                return valid
        raise UserError(f"{what} must be one of {', '.join(map(str, get_args(kind)))}, got {value!r}")
    if get_origin(kind) in (Union, UnionType):
        kinds = [k for k in get_args(kind) if k is not NoneType]
        if len(kinds) == 1:
            return None if value is None or value == "none" else read_value(what, value, kinds[0])
    if kind not in PLAIN:
        raise UserError(f"{what} has type {kind}; options are bool, int, float, str or a Literal, or one of these or None")
    if isinstance(value, str) and kind is not str:
        words = {"true": True, "yes": True, "false": False, "no": False}
        try:
            value = words[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise UserError(f"{what} must be {kind.__name__}, got {value!r}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{what} must be {kind.__name__}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, got {value}")
    return value


def describe_options(design: type[Residual]) -> dict[str, Any]:
    """Each option and its default."""
    return {item.name: item.default for item in fields(design.Options)}
