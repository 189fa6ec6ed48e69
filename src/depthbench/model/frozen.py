"""Coefficients held fixed, so that the way from a sublayer's output to a later input is a linear map.

Norms call `coefficient` on their statistics, designs on their mixing weights. It does nothing, except while a diagnosis asks what
the residual connection alone carries from where to where.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_frozen = False


def are_frozen() -> bool:
    """Whether coefficients are held fixed now."""
    return _frozen


def coefficient(x: Tensor) -> Tensor:
    """`x`; while coefficients are held fixed, without its gradient."""
    return x.detach() if _frozen else x


@contextmanager
def frozen_coefficients() -> Iterator[None]:
    """Hold coefficients fixed."""
    global _frozen
    before, _frozen = _frozen, True
    try:
        yield
    finally:
        _frozen = before
