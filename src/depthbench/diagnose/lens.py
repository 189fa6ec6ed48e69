"""The logit lens: every depth state decoded by the model's own final norm and head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from depthbench.diagnose.scores import FloatArray
from depthbench.diagnose.subject import Passes
from depthbench.model.precision import at_least_fp32

TOP = 5


@dataclass(frozen=True)
class Lens:
    """For z_0 … z_M, each `[windows, M+1]` and a mean over the T-1 predictions: `loss` in nats of the early exit, `divergence` in
    nats KL(final ‖ early), and `overlap`, the share of the final five likeliest tokens that are among the early five.
    """

    loss: FloatArray
    divergence: FloatArray
    overlap: FloatArray


def lens(passes: Passes) -> Lens:
    """Decode every depth state. Logits of one part of the tokens are held at a time, whatever the depth."""
    depth, rows = passes.subject.depth, len(passes.windows)
    shown = [passes.early_exit(block, place) for block, place in enumerate(passes.places[:-1])]
    shown.append(passes.end(passes.places[-1]))
    due = passes.windows[:, 1:]
    found = [np.zeros((rows, depth + 1)) for _ in range(3)]
    step = passes.subject.chunk_tokens
    for row in range(rows):
        for start in range(0, due.shape[1], step):
            part = slice(start, min(start + step, due.shape[1]))
            final = _log_probabilities(passes, shown[-1][row, part])
            best = final.topk(min(TOP, final.shape[-1]), dim=-1).indices
            for block, hidden in enumerate(shown):
                early = final if block == depth else _log_probabilities(passes, hidden[row, part])
                wanted = due[row, part, None]
                top = early.topk(best.shape[-1], dim=-1).indices
                same = (best[:, :, None] == top[:, None, :]).any(-1).double().mean(-1)
                divergence = (final.exp() * (final - early)).double().sum(-1)
                for into, value in zip(found, (-early.gather(-1, wanted).double().squeeze(-1), divergence, same), strict=True):
                    into[row, block] += float(value.sum()) / due.shape[1]
    return Lens(*found)


def _log_probabilities(passes: Passes, hidden: Tensor) -> Tensor:
    return at_least_fp32(passes.logits(hidden)).log_softmax(-1)
