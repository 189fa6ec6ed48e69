"""Finding a design by name: the ten of this package, a class in a user's file, or an installed entry point.

A user's design is `path/to/file.py:Class`, or a name from the entry-point group `depthbench.residuals`. Both are checked against
the protocol on a tiny model before anything is trained (see `check.py`).
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from depthbench.errors import UserError, unknown
from depthbench.residual.attnres import AttnRes
from depthbench.residual.attnres_block import AttnResBlock
from depthbench.residual.check import check_protocol
from depthbench.residual.deepnorm import DeepNorm
from depthbench.residual.hc import HC
from depthbench.residual.keel import Keel
from depthbench.residual.lns import LNS
from depthbench.residual.mhc import MHC
from depthbench.residual.moda import MoDA
from depthbench.residual.preln import PreLN
from depthbench.residual.protocol import Residual
from depthbench.residual.sandwich import Sandwich
from depthbench.shape import ModelShape

ENTRY_POINT_GROUP = "depthbench.residuals"
BUILT_IN: dict[str, type[Residual]] = {
    design.key: design for design in (PreLN, Sandwich, LNS, DeepNorm, Keel, HC, MHC, AttnRes, AttnResBlock, MoDA)
}


def find_design(name: str) -> type[Residual]:
    """The class called `name`. Raises `UserError` for an unknown name, or a file or class that cannot be used."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return _from_file(name)
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name in installed:
        try:
            return _need_residual(installed[name].load(), name)
        except ImportError as error:
            raise UserError(f"design {name!r} is installed but cannot be imported: {error}") from error
    raise unknown("design", name, [*BUILT_IN, *installed])


def list_designs() -> dict[str, type[Residual]]:
    """The built-in designs and the installed ones, by name."""
    return BUILT_IN | {point.name: find_design(point.name) for point in entry_points(group=ENTRY_POINT_GROUP)}


def _from_file(name: str) -> type[Residual]:
    path, _, class_name = name.rpartition(":")
    module = load_module(Path(path), f"a design is given as path/to/file.py:Class, got {name!r}")
    if not hasattr(module, class_name):
        raise unknown(f"class in {path}", class_name, [n for n, v in vars(module).items() if _is_residual(v)])
    return _need_residual(getattr(module, class_name), name)


@cache
def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def load_module(path: Path, usage: str) -> ModuleType:
    """Run a user's Python file once. Raises `UserError` if it is missing or fails; `usage` says how it should be given."""
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{path} is not a Python file that exists; {usage}")
    try:
        return _load_module(path.resolve())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"running {path} failed: {type(error).__name__}: {error}") from error


def _is_residual(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Residual) and value is not Residual


def _need_residual(value: object, name: str) -> type[Residual]:
    if not _is_residual(value):
        raise UserError(f"{name} is {value!r}; a design is a subclass of depthbench.Residual")
    assert isinstance(value, type)
    return value


def make_residual(name: str, shape: ModelShape, options: dict[str, Any]) -> Residual:
    """The design called `name` for one shape. Option values may be text, as they come from a command line."""
    design = find_design(name)
    filled = read_options(design, name, options)
    if design not in BUILT_IN.values():
        check_protocol(design, filled)  # type: ignore[arg-type]  # a class is hashable
    return design(shape, filled)


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
    return design.Options(**values)


def read_value(what: str, value: Any, kind: Any) -> Any:
    """`value` as the type `kind` (bool, int, float, str, a Literal or a union of these). Raises `UserError` if it is not one."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UserError(f"{what} must be one of {', '.join(map(str, get_args(kind)))}, got {value!r}")
        return value
    if get_origin(kind) in (Union, UnionType):
        kinds = [k for k in get_args(kind) if k is not type(None)]
        return None if value is None or value == "none" else read_value(what, value, kinds[0])
    if isinstance(value, str) and kind is not str:
        words = {"true": True, "yes": True, "false": False, "no": False}
        try:
            value = words[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError, TypeError):
            raise UserError(f"{what} must be {kind.__name__}, got {value!r}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{what} must be {kind.__name__}, got {value!r}")
    return value


def describe_options(design: type[Residual]) -> dict[str, Any]:
    """Each option and its default."""
    return {item.name: None if item.default is MISSING else item.default for item in fields(design.Options)}


def summary_of(design: type[Residual]) -> str:
    """The first paragraph of the docstring of the module that holds the design."""
    return (inspect.getdoc(sys.modules[design.__module__]) or "").strip()
