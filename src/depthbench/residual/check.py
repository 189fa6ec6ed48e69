"""Does a user's design follow the protocol? Tried on a tiny model, so that a mistake is one clear line and not a traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from depthbench.errors import UserError
from depthbench.model.backbone import Attention, AttentionSublayer, Heads, SwiGLU, rope_table
from depthbench.residual.protocol import Link, Residual
from depthbench.shape import ModelShape

TINY = ModelShape(n_layers=3, d_model=8, n_heads=2, vocab_size=11, context=5)
BATCH = 2


@dataclass(frozen=True)
class _CheckedAttention(AttentionSublayer):
    """An attention sublayer that looks at what a link hands it."""

    where: str = ""

    def __call__(self, x: Tensor, /) -> Tensor:
        return super().__call__(_need_stream(f"{self.where}.read", x))

    def heads(self, x: Tensor) -> Heads:
        return super().heads(_need_stream(f"{self.where}.read", x))


@cache
def check_protocol(design: type[Residual], options: Any) -> None:
    """Run `design` on a tiny model. Raises `UserError` that names the method, what it returned and what it should return."""
    name = design.__name__
    residual = _try(f"{name}(shape, options)", lambda: design(TINY, options))
    torch_state = torch.random.get_rng_state()
    try:
        embedding = torch.randn(BATCH, TINY.context, TINY.d_model)
        with torch.no_grad():
            _check_causal(name, residual, [_need_link(name, residual, i) for i in range(TINY.n_sublayers)], embedding)
    finally:
        torch.random.set_rng_state(torch_state)
    _check_count(name, residual, options)


def _try(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UserError:
        raise
    except NotImplementedError:
        raise UserError(f"{what} is missing; a residual design must define it (see docs/own_design.md)") from None
    except Exception as error:
        raise UserError(f"{what} raised {type(error).__name__}: {error}") from error


def _need_link(name: str, residual: Residual, i: int) -> Link:
    link = _try(f"{name}.link({i})", lambda: residual.link(i))
    if not isinstance(link, Link):
        raise UserError(f"{name}.link({i}) returned {_shown(link)}; it must return a depthbench.Link")
    return link


def _check_causal(name: str, residual: Residual, links: list[Link], embedding: Tensor) -> None:
    """Every step has the right shape, and a change at the last position leaves the earlier ones as they were."""
    attention, mlp = Attention(TINY), SwiGLU(TINY)
    changed = embedding.clone()
    changed[:, -1] += 1.0
    hidden = []
    for x in (embedding, changed):
        rope = rope_table(TINY.context, TINY.head_dim, like=x)
        state = _try(f"{name}.open", lambda x=x: residual.open(x))  # type: ignore[misc]
        for i, link in enumerate(links):
            where = f"{name}.link({i})"
            state = _step(where, link, state, _CheckedAttention(attention, rope, where) if i % 2 == 0 else mlp)
        closed = _try(f"{name}.close", lambda state=state: residual.close(state))  # type: ignore[misc]
        hidden.append(_need_stream(f"{name}.close", closed))
    if not torch.equal(hidden[0][:, :-1], hidden[1][:, :-1]):
        raise UserError(f"{name} mixes positions: changing the last token changed the hidden state of earlier ones")


def _step(where: str, link: Link, state: Any, sublayer: Any) -> Any:
    if type(link).forward is not Link.forward:
        return _try(where, lambda: link(state, sublayer))
    x = _need_stream(f"{where}.read", _try(f"{where}.read", lambda: link.read(state)))
    written = _try(f"{where}.write", lambda: link.write(state, sublayer(x)))
    if written is None:
        raise UserError(f"{where}.write returned None; it must return the new state")
    return written


def _need_stream(what: str, value: Any) -> Tensor:
    wanted = (BATCH, TINY.context, TINY.d_model)
    if not isinstance(value, Tensor) or tuple(value.shape) != wanted or not value.is_floating_point():
        raise UserError(
            f"{what} returned {_shown(value)}; it must return [batch, positions, d_model], here {list(wanted)}, floating point"
        )
    if not bool(value.isfinite().all()):
        raise UserError(f"{what} returned non-finite numbers for a normal embedding")
    return value


def _shown(value: Any) -> str:
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}" if isinstance(value, Tensor) else repr(value)


def _check_count(name: str, residual: Residual, options: Any) -> None:
    """A stated parameter formula must agree with what is built."""
    stated = residual.own_parameters()
    if stated is None:
        return
    links = [residual.link(i) for i in range(TINY.n_sublayers)]
    built = sum(p.numel() for module in (residual, *links) for p in module.parameters()) - TINY.n_sublayers * TINY.d_model
    if built != stated:
        raise UserError(
            f"{name}.own_parameters returned {stated} for {TINY.n_layers} layers of width {TINY.d_model}, but {built} were built"
            " beyond Pre-LN's gains; correct it or return None"
        )
