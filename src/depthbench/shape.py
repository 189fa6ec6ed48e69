"""Shapes of a LLaMA-style decoder: what one is, how many parameters it has, and which width meets a budget.

Counts are exact and include the norm gains of the Pre-LN design (two a block and the final one). *Backbone* is the blocks alone;
*total* adds the embedding, the untied head and the final norm. What another design adds or leaves out is counted by that design.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from depthbench.errors import UserError

D_FF_MULTIPLE = 16
D_FF_RATIO = "8/3"


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model. `d_model = n_heads · head_dim`; query heads share `n_kv_heads` key-value heads in equal groups.

    Raises `UserError` when the sizes do not fit together.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int = field(default=0)  # 0: as many as n_heads
    head_dim: int = field(default=0)  # 0: d_model / n_heads
    d_ff: int = field(default=0)  # 0: 8/3 · d_model, rounded up to a multiple of 16
    vocab_size: int = 257
    context: int = 2048

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "vocab_size", "context"):
            self._need(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        if self.head_dim == 0:
            divisible = self.d_model % self.n_heads == 0
            below = self.d_model - self.d_model % self.n_heads
            hint = f"try d_model {below or self.n_heads} or {below + self.n_heads}"
            self._need(divisible, f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; {hint}")
            object.__setattr__(self, "head_dim", self.d_model // self.n_heads)
        if self.n_kv_heads == 0:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.d_ff == 0:
            object.__setattr__(self, "d_ff", feed_forward_width(self.d_model))
        self._need(self.head_dim >= 2, f"head_dim must be a positive even number, got {self.head_dim}")
        self._need(self.d_ff >= 1, f"d_ff must be at least 1, got {self.d_ff}")
        self._need(
            self.head_dim % 2 == 0,
            f"head_dim {self.head_dim} (d_model {self.d_model} / n_heads {self.n_heads}) is odd, and rotary positions need it"
            f" even; choose d_model divisible by {2 * self.n_heads}",
        )
        self._need(
            self.d_model == self.n_heads * self.head_dim,
            f"d_model {self.d_model} is not n_heads {self.n_heads} × head_dim {self.head_dim}",
        )
        self._need(
            self.n_kv_heads >= 1 and self.n_heads % self.n_kv_heads == 0,
            f"n_kv_heads {self.n_kv_heads} does not divide n_heads {self.n_heads}",
        )

    @staticmethod
    def _need(condition: bool, message: str) -> None:
        if not condition:
            raise UserError(message)

    @property
    def aspect_ratio(self) -> float:
        """`d_model / n_layers`: large is shallow and wide, small is deep and narrow."""
        return self.d_model / self.n_layers

    @property
    def n_sublayers(self) -> int:
        """`2M`: an attention and a feed-forward sublayer a block."""
        return 2 * self.n_layers

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one layer: `n_kv_heads · head_dim`."""
        return self.n_kv_heads * self.head_dim

    @property
    def backbone_parameters(self) -> int:
        """Parameters of the blocks with their Pre-LN gains."""
        attention = 2 * self.d_model * self.d_model + 2 * self.d_model * self.kv_width
        feed_forward = 3 * self.d_model * self.d_ff
        return self.n_layers * (attention + feed_forward + 2 * self.d_model)

    @property
    def total_parameters(self) -> int:
        """Backbone, embedding, untied head and the gain of the final norm."""
        return self.backbone_parameters + 2 * self.vocab_size * self.d_model + self.d_model

    @property
    def name(self) -> str:
        """Readable and short, such as `16x96`: layers × width."""
        return f"{self.n_layers}x{self.d_model}"


def shape_fields() -> list[str]:
    """The names of the sizes, in order."""
    return [item.name for item in fields(ModelShape)]


def feed_forward_width(d_model: int, ratio: str = D_FF_RATIO, multiple: int = D_FF_MULTIPLE) -> int:
    """`d_ff` of the rule `ratio · d_model`, rounded up to a multiple. `ratio` is a number or a fraction such as `8/3`."""
    numerator, denominator = _fraction(ratio)
    return math.ceil(numerator * d_model / denominator / multiple) * multiple


def _fraction(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)(?:/([1-9]\d*))?", text)
    if not match:
        raise UserError(f"the feed-forward ratio must be a whole number or a fraction such as 8/3, got {text!r}")
    return int(match[1]), int(match[2] or 1)


@dataclass(frozen=True)
class Budget:
    """A parameter budget and the rules that turn it and a layer count into a shape.

    `count` is what `match` counts: "total" (with embedding and head) or "backbone" (blocks alone). `tolerance` is the relative
    distance beyond which a shape is said to miss the budget.
    """

    count: float
    match: str = "total"
    n_heads: int = 16
    n_kv_heads: int = 0
    vocab_size: int = 50_280
    context: int = 2048
    d_ff_ratio: str = D_FF_RATIO
    d_ff_multiple: int = D_FF_MULTIPLE
    tolerance: float = 0.03

    def __post_init__(self) -> None:
        if self.match not in ("total", "backbone"):
            raise UserError(f"match must be 'total' or 'backbone', got {self.match!r}")
        if not (math.isfinite(self.count) and self.count >= 1):
            raise UserError(f"the budget must be a positive number of parameters, got {self.count}")
        for name in ("n_heads", "vocab_size", "context", "d_ff_multiple"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")

    def shape_at(self, n_layers: int, d_model: int) -> ModelShape:
        """The shape of this budget's rules at a given depth and width, whatever its count."""
        return ModelShape(
            n_layers=n_layers,
            d_model=d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            d_ff=feed_forward_width(d_model, self.d_ff_ratio, self.d_ff_multiple),
            vocab_size=self.vocab_size,
            context=self.context,
        )

    def counted(self, shape: ModelShape) -> int:
        """The parameters of `shape` that this budget counts."""
        return shape.total_parameters if self.match == "total" else shape.backbone_parameters

    def miss(self, shape: ModelShape) -> float:
        """Signed relative distance of `shape` from the budget."""
        return self.counted(shape) / self.count - 1

    def solve(self, n_layers: int) -> ModelShape:
        """The shape of `n_layers` whose count is nearest the budget, over widths with an even head_dim (ties: the narrower).

        Raises `UserError` when even the narrowest width is over the budget by more than the tolerance.
        """
        if n_layers < 1:
            raise UserError(f"n_layers must be at least 1, got {n_layers}")
        step = 2 * self.n_heads
        low, high = 1, 2
        while self.counted(self.shape_at(n_layers, high * step)) < self.count:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.counted(self.shape_at(n_layers, middle * step)) < self.count:
                low = middle
            else:
                high = middle
        found = min((self.shape_at(n_layers, k * step) for k in (low, high)), key=lambda s: (abs(self.miss(s)), s.d_model))
        if found.d_model == step and self.miss(found) > self.tolerance:
            needed = human(self.counted(found))
            raise UserError(
                f"a {self.match} budget of {human(self.count)} is too small for {n_layers} layers with {self.n_heads} heads: even"
                f" width {step} takes {needed}; use fewer layers, fewer heads or a larger budget"
            )
        return found


def parse_count(text: str) -> float:
    """Read `405M`, `1.615B`, `300k` or a plain number. Raises `UserError` naming the text."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kKmMbBgGtT]?)\s*", text.replace("_", "").replace(",", ""))
    if not match:
        raise UserError(f"cannot read {text!r} as a number of parameters; write 405M, 1.6B or 300000")
    factor = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}[match[2].lower()]
    return float(match[1]) * factor


def human(count: float) -> str:
    """A count with three significant figures: `1.41B`, `405M`, `12.3k`."""
    rounded = float(f"{count:.3g}")
    for factor, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= factor:
            scaled = rounded / factor
            return f"{scaled:.{max(0, 2 - math.floor(math.log10(abs(scaled))))}f}{unit}"
    return f"{count:.0f}"


def solve_all(budget: Budget, n_layers: Iterable[int]) -> list[ModelShape]:
    """One shape per layer count, in the order given; a layer count given twice is an error."""
    counts = list(n_layers)
    if not counts:
        raise UserError("give at least one layer count, for instance --n-layers 16 24 32")
    if len(set(counts)) != len(counts):
        raise UserError(f"layer counts repeat: {' '.join(map(str, counts))}; give each once")
    return [budget.solve(count) for count in counts]
