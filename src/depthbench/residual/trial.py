"""A design on trial: built, and run over a tiny model with every result looked at. Whatever goes wrong is one `UserError`."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depthbench.errors import UserError
from depthbench.model.backbone import Attention, AttentionSublayer, Heads, SwiGLU, rope_table
from depthbench.residual.protocol import Link, Residual, tensors_of
from depthbench.shape import ModelShape

TINY = ModelShape(n_layers=4, d_model=8, n_heads=2, vocab_size=11, context=5)
BATCH = 2
HELP = "see docs/own_design.md"


def reason(error: BaseException, file: str | Path | None) -> str:
    """An error in one line, with the line of the user's `file` that it came from."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == str(file)]
    return f"{text} ({Path(str(file)).name} line {lines[-1]})" if lines else text


@dataclass(frozen=True)
class Trial:
    """A design built for `shape`: the `residual` and all its links."""

    residual: Residual
    links: list[Link]

    @property
    def name(self) -> str:
        """The class, as errors call it."""
        return type(self.residual).__name__

    @property
    def parts(self) -> nn.ModuleList:
        """Everything the design brings along; what its links share is there once."""
        return nn.ModuleList([self.residual, *self.links])

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter, as `residual.scale` or `link(2).gate`."""
        for key, parameter in self.parts.named_parameters():
            place, _, rest = key.partition(".")
            yield (f"link({int(place) - 1}).{rest}" if int(place) else f"residual.{rest}"), parameter

    def attempt(self, method: str, call: Callable[[], Any]) -> Any:
        """The result of a call into the user's code."""
        return _attempt(f"{self.name}.{method}", type(self.residual), call)

    def run(self, embedding: Tensor, attention: Attention, mlp: SwiGLU) -> Pass:
        """A whole pass over an `embedding` of the tiny shape."""
        rope = rope_table(TINY.context, TINY.head_dim, like=embedding)
        state = _need_state(f"{self.name}.open", self.attempt("open", lambda: self.residual.open(embedding)))
        sizes = [_size(state)]
        for i, link in enumerate(self.links):
            where = f"{self.name}.link({i})"
            sublayer = _WatchedAttention(attention, rope, where) if i % 2 == 0 else _WatchedMLP(mlp, where)
            state = self._step(i, link, state, sublayer)
            sizes.append(_size(state))
        with _left_alone(f"{self.name}.close", state):
            closed = self.attempt("close", lambda: self.residual.close(state))
        return Pass(_need_stream(f"{self.name}.close", closed), sizes)

    def _step(self, i: int, link: Link, state: Any, sublayer: Callable[[Tensor], Tensor]) -> Any:
        """One sublayer: by `read` and `write`, or by the link's own `forward`."""
        if type(link).forward is not Link.forward:
            with _left_alone(f"{self.name}.link({i})", state):
                written = self.attempt(f"link({i})", lambda: link(state, sublayer))
            return _need_state(f"{self.name}.link({i})", written)
        read, write = f"link({i}).read", f"link({i}).write"
        with _left_alone(f"{self.name}.{read}", state):
            x = self.attempt(read, lambda: link.read(state))
        y = sublayer(x)
        with _left_alone(f"{self.name}.{write}", state):
            written = self.attempt(write, lambda: link.write(state, y))
        return _need_state(f"{self.name}.{write}", written)


@dataclass(frozen=True)
class Pass:
    """What a pass gave: the closed state `[B, T, d]`, and how many numbers the state held after `open` and each sublayer."""

    hidden: Tensor
    sizes: list[int]


@dataclass(frozen=True)
class _WatchedAttention(AttentionSublayer):
    """Attention that looks at what a link hands it."""

    where: str = ""

    def __call__(self, x: Tensor, /) -> Tensor:
        return super().__call__(_need_stream(f"{self.where}.read", x))

    def heads(self, x: Tensor) -> Heads:
        return super().heads(_need_stream(f"{self.where}.read", x))


@dataclass(frozen=True)
class _WatchedMLP:
    """A feed-forward that looks at what a link hands it."""

    mlp: SwiGLU
    where: str

    def __call__(self, x: Tensor, /) -> Tensor:
        y: Tensor = self.mlp(_need_stream(f"{self.where}.read", x))
        return y


def build(design: type[Residual], shape: ModelShape, options: Any) -> Trial:
    """The design and its links, from one and the same seed each time."""
    name = design.__name__
    torch.manual_seed(0)
    residual = _attempt(f"{name}.__init__", design, lambda: design(shape, options))
    if getattr(residual, "shape", None) is not shape or getattr(residual, "options", None) is not options:
        raise UserError(f"{name}.__init__ does not hand shape and options on; begin it with super().__init__(shape, options)")
    if design.link is Residual.link:
        raise UserError(f"{name}.link is missing; a design must define link(i) -> Link ({HELP})")
    trial = Trial(residual, [])
    for i in range(shape.n_sublayers):
        link = trial.attempt(f"link({i})", lambda i=i: residual.link(i))  # type: ignore[misc]
        if not isinstance(link, Link):
            raise UserError(f"{name}.link({i}) returned {shown(link)}; it must return a depthbench.Link")
        for method in ("read", "write"):
            if getattr(type(link), method) is getattr(Link, method) and type(link).forward is Link.forward:
                raise UserError(f"{type(link).__name__}.{method} is missing; a link must define read and write ({HELP})")
        trial.links.append(link)
    return trial


def _attempt(what: str, design: type[Residual], call: Callable[[], Any]) -> Any:
    file = None
    with suppress(TypeError):  # a class made in a session has no file
        file = inspect.getfile(design)
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} raised {reason(error, file)}") from error


@contextmanager
def _left_alone(what: str, state: Any) -> Iterator[None]:
    """Whoever reads a state must not change it: diagnostics and gradients go back to it."""
    before = [(id(tensor), tensor._version) for tensor in tensors_of(state)]
    yield
    if [(id(tensor), tensor._version) for tensor in tensors_of(state)] != before:
        raise UserError(f"{what} changed the state it was given; make a new one, for instance x + y instead of x += y")


def _size(state: Any) -> int:
    return sum(tensor.numel() for tensor in tensors_of(state))


def _need_state(what: str, value: Any) -> Any:
    if not _size(value):
        raise UserError(f"{what} returned {shown(value)}; it must return a state: a tensor, or tensors in tuples, lists or dicts")
    return value


def _need_stream(what: str, value: Any) -> Tensor:
    wanted = (BATCH, TINY.context, TINY.d_model)
    if not isinstance(value, Tensor) or tuple(value.shape) != wanted or value.dtype != torch.float32:
        raise UserError(f"{what} returned {shown(value)}; it must return [batch, positions, d_model], here {list(wanted)} float32")
    if not bool(value.isfinite().all()):
        raise UserError(f"{what} returned non-finite numbers for a normal embedding")
    return value


def need_number(what: str, value: Any) -> float:
    """A finite number that a method returned."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{what} returned {shown(value)}; it must return a finite number")
    return value


def shown(value: Any) -> str:
    """A returned value in a few words; tensors by shape and type."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list) and value:
        return f"{type(value).__name__} of {shown(value[0])}{f' and {len(value) - 1} more' if len(value) > 1 else ''}"
    return repr(value) if value is None or isinstance(value, bool | int | float) else f"{type(value).__name__} object"
