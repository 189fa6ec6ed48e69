"""From scores of documents to those of tasks and groups, with standard errors over documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depthbench.evaluate.likelihood import Score


def of_task(scores: Sequence[Score]) -> dict[str, Any]:
    """Nats per token and bits per byte, each a ratio of sums over the documents, with its standard error.

    The error is that of a ratio of means, `sqrt(n / (n-1) · Σ (y - r·x)²) / Σ x`; None for a single document.
    """
    nll, tokens, n_bytes = (np.array([getattr(item, key) for item in scores], dtype=float) for key in ("nll", "tokens", "bytes"))
    per_token, per_byte = _ratio(nll, tokens), _ratio(nll / math.log(2), n_bytes)
    return {
        "documents": len(scores),
        "tokens": int(tokens.sum()),
        "bytes": int(n_bytes.sum()),
        "cut_tokens": sum(item.cut for item in scores),
        "cut_documents": sum(item.cut > 0 for item in scores),
        "documents_in_pieces": sum(item.pieces > 1 for item in scores),
        "nll": per_token[0],
        "nll_standard_error": per_token[1],
        "bits_per_byte": per_byte[0],
        "bits_per_byte_standard_error": per_byte[1],
    }


def _ratio(y: NDArray[np.float64], x: NDArray[np.float64]) -> tuple[float, float | None]:
    total, n = float(x.sum()), len(x)
    ratio = float(y.sum()) / total
    if n < 2:
        return ratio, None
    return ratio, math.sqrt(n / (n - 1) * float(np.square(y - ratio * x).sum())) / total


def of_groups(tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The plain mean of the tasks of each group; the error takes tasks as independent, None if one has none."""
    groups: dict[str, list[str]] = {}
    for name, task in tasks.items():
        groups.setdefault(task["group"], []).append(name)
    found = {}
    for group, names in groups.items():
        members = [tasks[name] for name in names]
        of_group: dict[str, Any] = {"tasks": names}
        for key in ("nll", "bits_per_byte"):
            errors = [member[f"{key}_standard_error"] for member in members]
            of_group[key] = sum(member[key] for member in members) / len(members)
            known = [error for error in errors if error is not None]
            whole = len(known) == len(errors)
            of_group[f"{key}_standard_error"] = math.sqrt(sum(error**2 for error in known)) / len(members) if whole else None
        found[group] = of_group
    return found
