"""Finding a design by name: the ten of this package, a class in a user's file, or an installed entry point.

A user's design is `path/to/file.py:Class`, or a name from the entry-point group `depthbench.residuals`. Both are checked against
the protocol on a tiny model before anything is trained (see `check.py`).
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from depthbench.errors import UserError, unknown
from depthbench.residual.attnres import AttnRes
from depthbench.residual.attnres_block import AttnResBlock
from depthbench.residual.check import check_builds, check_protocol
from depthbench.residual.deepnorm import DeepNorm
from depthbench.residual.hc import HC
from depthbench.residual.keel import Keel
from depthbench.residual.lns import LNS
from depthbench.residual.mhc import MHC
from depthbench.residual.moda import MoDA
from depthbench.residual.options import describe_options, need_options, read_options
from depthbench.residual.preln import PreLN
from depthbench.residual.protocol import Residual
from depthbench.residual.sandwich import Sandwich
from depthbench.residual.trial import reason
from depthbench.shape import ModelShape

__all__ = [
    "BUILT_IN",
    "describe_options",
    "find_design",
    "list_designs",
    "load_module",
    "make_residual",
    "read_options",
    "source_of",
]

ENTRY_POINT_GROUP = "depthbench.residuals"
BUILT_IN: dict[str, type[Residual]] = {
    design.key: design for design in (PreLN, Sandwich, LNS, DeepNorm, Keel, HC, MHC, AttnRes, AttnResBlock, MoDA)
}


def find_design(name: str) -> type[Residual]:
    """The class called `name`. Raises `UserError` for an unknown name, or a file or class that cannot be used."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name or name.endswith(".py"):
        return _from_file(name)
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in installed:
        raise unknown("design", name, [*BUILT_IN, *installed])
    try:
        return _need_residual(installed[name].load(), name)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the package does at import, an exit included
        raise UserError(
            f"design {name!r} is installed as {installed[name].value} but cannot be loaded: {reason(error, None)}"
        ) from error


def source_of(name: str) -> bytes:
    """The text of the file that a user's or an installed design is defined in; empty for the built-in ones.

    It is part of what a cell is: an edited design makes other cells.
    """
    if name in BUILT_IN:
        return b""
    design = find_design(name)
    path = name.rpartition(":")[0] or inspect.getsourcefile(design)
    return Path(path).read_bytes() if path else b""


def list_designs() -> dict[str, type[Residual]]:
    """The built-in designs and the installed ones, by name."""
    return BUILT_IN | {point.name: find_design(point.name) for point in entry_points(group=ENTRY_POINT_GROUP)}


def _from_file(name: str) -> type[Residual]:
    path, _, class_name = name.rpartition(":") if ":" in name else (name, "", "")
    module = load_module(Path(path), f"a design is given as path/to/file.py:Class, got {name!r}")
    if not hasattr(module, class_name):
        own = [key for key, value in vars(module).items() if _is_residual(value) and value.__module__ == module.__name__]
        if not own:
            raise UserError(f"{path} defines no design; a design is a subclass of depthbench.Residual")
        if not class_name:
            raise UserError(f"{path} is a file; name the design in it as well: {path}:{own[0]}")
        raise unknown(f"design in {path}", class_name, own)
    return _need_residual(getattr(module, class_name), name)


def load_module(path: Path, usage: str) -> ModuleType:
    """Run a user's Python file, once for each text it has. Raises `UserError` if it is missing or fails; `usage` says how it
    should be given.
    """
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{path} is not a Python file that exists; {usage}")
    try:
        return _run_file(path.resolve(), path.read_bytes())
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever the file does, an exit included
        raise UserError(f"running {path} failed: {reason(error, path.resolve())}") from error


@cache
def _run_file(path: Path, text: bytes) -> ModuleType:
    """A module of its own for every text: cells are named by it, so an edited file must not give what an older text defined."""
    module = ModuleType(f"{path.stem}_{hashlib.sha256(bytes(path) + text).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up by name
    try:
        exec(compile(text, path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _is_residual(value: object) -> TypeGuard[type[Residual]]:
    return isinstance(value, type) and issubclass(value, Residual) and value is not Residual


def _need_residual(value: object, name: str) -> type[Residual]:
    if not _is_residual(value):
        raise UserError(f"{name} is {value!r}; a design is a subclass of depthbench.Residual")
    need_options(value, name)
    return value


def make_residual(name: str, shape: ModelShape, options: dict[str, Any]) -> Residual:
    """The design called `name` for one shape. Option values may be text, as they come from a command line."""
    design = find_design(name)
    filled = read_options(design, name, options)
    if design not in BUILT_IN.values():
        check_protocol(design, filled)  # type: ignore[arg-type]  # a class is hashable
        check_builds(design, shape, filled)  # type: ignore[arg-type]
    return design(shape, filled)


def summary_of(design: type[Residual]) -> str:
    """What a design is, in the words of its file's docstring; of the class, where the file has none."""
    return inspect.cleandoc(sys.modules[design.__module__].__doc__ or design.__doc__ or "")
