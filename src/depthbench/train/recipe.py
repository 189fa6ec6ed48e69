"""The training recipe: everything beside design, shape, seed and data that decides what a run computes (protocol.md section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from depthbench.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """AdamW with linear warm-up and a cosine to a tenth of the peak.

    `batch_size` is in sequences. `decay` is "all" (everything but what the design exempts) or "matrices" (also exempts tensors of
    fewer than two dimensions). `precision` is "fp32" or "bf16" (autocast over fp32 weights). `validation_every` counts updates,
    0 for the end alone; `validation_windows` is how many windows from the start of the validation tokens, 0 for all. A run is
    `diverged` when its loss is not finite, or stays above its running minimum by `divergence_margin` nats for
    `divergence_patience` updates.
    """

    steps: int
    batch_size: int
    learning_rate: float
    warmup_fraction: float = 0.1
    final_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.1
    decay: str = "all"
    clip_norm: float = 1.0
    precision: str = "fp32"
    validation_every: int = 0
    validation_windows: int = 0
    divergence_margin: float = 1.0
    divergence_patience: int = 50

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, str) and not math.isfinite(value):
                raise UserError(f"{item.name} must be a finite number, got {value}")
            if item.type == "int" and not isinstance(value, int):
                raise UserError(f"{item.name} must be a whole number, got {value!r}")
        for name in ("steps", "batch_size", "divergence_patience"):
            _need(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "adam_eps", "clip_norm", "divergence_margin"):
            _need(name, getattr(self, name), getattr(self, name) > 0, "above 0")
        for name in ("warmup_fraction", "final_fraction", "beta1", "beta2"):
            _need(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("weight_decay", "validation_every", "validation_windows"):
            _need(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        _need("decay", self.decay, self.decay in ("all", "matrices"), "'all' or 'matrices'")
        _need("precision", self.precision, self.precision in ("fp32", "bf16"), "'fp32' or 'bf16'")

    @property
    def warmup_steps(self) -> int:
        """`W = max(1, round half up of warmup_fraction · steps)`."""
        return max(1, math.floor(self.warmup_fraction * self.steps + 0.5))

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update `step`, 0 ≤ step < steps (exact.md 12). The last update uses `final_fraction` of the peak."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        progress = (step + 1 - self.warmup_steps) / (self.steps - self.warmup_steps)
        cosine = (1 - self.final_fraction) / 2 * (1 + math.cos(math.pi * progress))
        return self.learning_rate * (self.final_fraction + cosine)


def _need(name: str, value: object, holds: bool, right: str) -> None:
    if not holds:
        raise UserError(f"{name} must be {right}, got {value!r}")


def steps_for(tokens_per_parameter: float, parameters: float, batch_size: int, context: int) -> int:
    """`round(tokens_per_parameter · parameters / (batch · context))`, at least 1 (exact.md 13)."""
    if not (math.isfinite(tokens_per_parameter) and tokens_per_parameter > 0):
        raise UserError(f"tokens_per_parameter must be above 0, got {tokens_per_parameter}")
    return max(1, round(tokens_per_parameter * parameters / (batch_size * context)))
