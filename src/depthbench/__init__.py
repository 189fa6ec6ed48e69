"""DepthBench: which shape a Transformer should have, and which residual design turns depth into computation.

`build_model(design, shape, seed=0, **options)` gives a model, `load_run(folder)` a trained one; `Residual` and `Link` are what a
design of your own derives from.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from depthbench.errors import UserError
from depthbench.shape import Budget, ModelShape

if TYPE_CHECKING:
    from depthbench.build import build_model, count_parameters
    from depthbench.model.backbone import RMSNorm
    from depthbench.residual.protocol import Link, Residual
    from depthbench.study.load import load_run
    from depthbench.study.study import Study
    from depthbench.train.recipe import Recipe

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "Link",
    "ModelShape",
    "RMSNorm",
    "Recipe",
    "Residual",
    "Study",
    "UserError",
    "build_model",
    "count_parameters",
    "load_run",
]
_HOMES = {
    "build_model": "build",
    "count_parameters": "build",
    "RMSNorm": "model.backbone",
    "Link": "residual.protocol",
    "Residual": "residual.protocol",
    "load_run": "study.load",
    "Study": "study.study",
    "Recipe": "train.recipe",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for, so that `depthbench --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"depthbench.{_HOMES[name]}"), name)
