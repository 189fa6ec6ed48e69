"""One hash for the code that decides what a run computes, so that a report can tell results of different code apart.

It covers the model, the designs, training, batches and validation, and leaves out what only plans, watches or reports. A changed
comment changes it too: it says "this is exactly that code", not that other code would compute something else.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent
DECIDING = (
    "build.py",
    "shape.py",
    "model/*.py",
    "residual/*.py",
    "train/*.py",
    "data/batches.py",
    "data/permutation.py",
    "evaluate/validation.py",
)
EVALUATING = ("build.py", "shape.py", "model/*.py", "residual/*.py", "data/tokenizer.py", "data/bpe.py", "evaluate/*.py")
DIAGNOSING = ("build.py", "shape.py", "model/*.py", "residual/*.py", "data/permutation.py", "diagnose/*.py")


def code_hash() -> str:
    """sha256 (hex) over the names and contents of the files that decide the results of training."""
    return _hash(DECIDING)


def diagnosing_hash() -> str:
    """The same for those that decide what a diagnosis finds."""
    return _hash(DIAGNOSING)


def evaluating_hash() -> str:
    """The same for those that decide what an evaluation finds."""
    return _hash(EVALUATING)


@cache
def _hash(patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        digest.update(f"{path.relative_to(ROOT).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
