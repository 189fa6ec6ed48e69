"""DepthBench: which shape a Transformer should have, and which residual design turns depth into computation.

`build_model(design, shape, seed=0, **options)` gives a model; `Residual` and `Link` are what a design of your own derives from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depthbench.errors import UserError
from depthbench.shape import Budget, ModelShape

if TYPE_CHECKING:
    from depthbench.build import build_model, count_parameters
    from depthbench.model.backbone import RMSNorm
    from depthbench.residual.protocol import Link, Residual

__version__ = "0.1.0"
__all__ = ["Budget", "Link", "ModelShape", "RMSNorm", "Residual", "UserError", "build_model", "count_parameters"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for, so that `depthbench --help` answers at once."""
    if name in ("build_model", "count_parameters"):
        from depthbench import build

        return getattr(build, name)
    if name in ("Link", "Residual"):
        from depthbench.residual import protocol

        return getattr(protocol, name)
    if name == "RMSNorm":
        from depthbench.model.backbone import RMSNorm

        return RMSNorm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
