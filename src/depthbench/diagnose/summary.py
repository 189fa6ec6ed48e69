"""From the arrays of a diagnosis to what its JSON says: matrices, late shares with intervals, curves. NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from depthbench.diagnose import shares
from depthbench.diagnose.mixing import dead_segment
from depthbench.diagnose.settings import Settings
from depthbench.diagnose.shares import FloatArray, interval, listed, means, resampled
from depthbench.diagnose.tasks import Arrays

LINEAR_TOLERANCE = 1e-3  # relative; above it path weights do not say what carries what
CURVE_TOPS = {"causal": 1.5, "permutation": 0.6}  # of the thresholds in the curves of shares


def summarise(arrays: Mapping[str, Arrays], settings: Settings, block_size: int | None) -> dict[str, Any]:
    """What each measure found; `arrays` by the names of tasks, `block_size` of a design with segments."""
    found: dict[str, Any] = {}
    if "angular" in arrays:
        found["angular"] = _angular(arrays["angular"]["distance"], settings.seed)
    skipped = {name: value for name, value in arrays.items() if name.startswith("causal.")}
    if skipped:
        found["causal"], found["pruning"] = {}, {}
        for name, value in skipped.items():
            _, kind, rule = name.split(".")
            found["causal"].setdefault(rule, {})[kind] = _causal(value, settings)
            found["pruning"].setdefault(rule, {})[kind] = _pruning(value, settings.seed)
    swapped = {name.split(".")[1]: value for name, value in arrays.items() if name.startswith("permutation.")}
    if swapped:
        found["permutation"] = {kind: _permutation(value, settings) for kind, value in swapped.items()}
    if "lens" in arrays:
        found["lens"] = _lens(arrays["lens"], settings.seed)
    replaced = {int(name.split(".")[1]): value for name, value in arrays.items() if name.startswith("usefulness.")}
    if replaced:
        found["usefulness"] = _usefulness([replaced[first] for first in sorted(replaced)], settings)
    if "paths" in arrays:
        found["paths"] = {"weight": listed(arrays["paths"]["weight"].mean(0)), **_linearity(arrays["paths"]["deviation"])}
    if "mixing" in arrays:
        found["mixing"] = _mixing(arrays["mixing"], settings, block_size)
    return found


def _angular(distance: FloatArray, seed: int) -> dict[str, Any]:
    n, depth = len(distance), distance.shape[1] - 1
    weights = resampled(n, seed)
    steps = means(weights, np.diagonal(distance, 1, 1, 2))
    late = steps[:, int(np.ceil(depth / 4)) :]
    return {
        "distance": listed(distance.mean(0)),
        "adjacent": interval(steps, n),
        "late_adjacent_mean": interval(late.mean(1), n),
    }


def _causal(arrays: Arrays, settings: Settings) -> dict[str, Any]:
    n = len(arrays["ratio"])
    weights = resampled(n, settings.seed)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_name = {
            "mean_of_ratios": means(weights, arrays["ratio"]),
            "ratio_of_means": means(weights, arrays["change"]) / means(weights, arrays["size"]),
            "max": arrays["largest"].max(axis=0, keepdims=True),
        }
    return {
        name: {
            "score": listed(samples[0]),
            # no interval for a maximum: that of resampled windows is never larger, so it says nothing about how sure one is
            "late": shares.late_summary(samples, n if len(samples) > 1 else 1, settings.causal_threshold, CURVE_TOPS["causal"]),
        }
        for name, samples in by_name.items()
    }


def _pruning(arrays: Arrays, seed: int) -> dict[str, Any]:
    n = len(arrays["loss"])
    weights = resampled(n, seed)
    loss, pruned = means(weights, arrays["loss"]), means(weights, arrays["pruned"])
    return {"loss": interval(loss, n), "pruned": interval(pruned, n), "change": interval(pruned - loss[:, None], n)}


def _permutation(arrays: Arrays, settings: Settings) -> dict[str, Any]:
    n = len(arrays["loss"])
    samples = shares.permutation_scores(resampled(n, settings.seed), arrays["loss"], arrays["swapped"])
    late = shares.late_summary(samples, n, settings.permutation_threshold, CURVE_TOPS["permutation"])
    return {"loss": float(arrays["loss"].mean()), "score": listed(samples[0]), "late": late}


def _lens(arrays: Arrays, seed: int) -> dict[str, Any]:
    n = len(arrays["loss"])
    weights = resampled(n, seed)
    found = {name: interval(means(weights, value), n) for name, value in arrays.items()}
    depth = shares.effective_depth(means(weights, arrays["divergence"]))
    return {**found, "effective_depth": interval(depth, n)}


def _usefulness(groups: list[Arrays], settings: Settings) -> dict[str, Any]:
    n = len(groups[0]["loss"])
    weights = resampled(n, settings.seed)
    replaced = np.concatenate([group["replaced"] for group in groups], axis=1)
    ratio = means(weights, replaced) / means(weights, groups[0]["loss"])[:, None]
    share = (ratio > settings.useful_ratio).mean(1)
    return {
        "held_out_windows": n,
        "ratio": interval(ratio, n),
        "threshold": settings.useful_ratio,
        "useful_share": interval(share, n),
    }


def _linearity(deviation: FloatArray) -> dict[str, Any]:
    """None where it could not be checked."""
    largest = float(deviation.max())
    if not np.isfinite(largest):
        return {"linear": None, "deviation": None}
    return {"linear": largest <= LINEAR_TOLERANCE, "deviation": largest}


def _mixing(arrays: Arrays, settings: Settings, block_size: int | None) -> dict[str, Any]:
    n = len(next(iter(arrays.values())))
    found = {name: interval(means(resampled(n, settings.seed), value), n) for name, value in arrays.items()}
    if "running" in arrays and block_size:
        dead = dead_segment(arrays["running"].mean(0), block_size, settings.dead_weight)
        found |= {"block_size": block_size, "threshold": settings.dead_weight, "dead_blocks": dead}
    return found
