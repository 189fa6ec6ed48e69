"""What the benchmarks share: options from the command line, medians with quartiles, and what machine this is."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import tyro

from depthbench.errors import UserError
from depthbench.shape import ModelShape

Options = TypeVar("Options")

USER_ERROR = 2
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LARGE_BLOCK = "65536"  # bytes; glibc maps such blocks one by one
MIB = 2**20


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a measurement over the rounds of one run."""

    q1: float
    median: float
    q3: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return Spread(*(float(value) for value in np.percentile(values, (25, 50, 75))))

    def text(self, pattern: str = ".2f") -> str:
        """`1.23 (1.20–1.27)`."""
        return f"{self.median:{pattern}} ({self.q1:{pattern}}–{self.q3:{pattern}})"


def run(options: type[Options], main: Callable[[Options], None]) -> None:
    """Parse `options` from the command line and call `main`; bad input is one line and exit code 2."""
    parsed = tyro.cli(options, config=(tyro.conf.FlagCreatePairsOff,))
    try:
        main(parsed)
    except UserError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


def need_positive(options: Any, *names: str) -> None:
    """Raise `UserError` unless each of these options, or all its values, is at least 1."""
    for name in names:
        value = getattr(options, name)
        if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
            raise UserError(f"--{name} must be at least 1, got {value}")


def parse_shapes(texts: Sequence[str], *, n_heads: int, context: int) -> list[ModelShape]:
    """`14x44` as 16 layers of width 44. Raises `UserError` if there is none, or one cannot be read or makes no model."""
    if not texts:
        raise UserError("give at least one shape, for instance --shapes 14x44")
    found = []
    for text in texts:
        layers, x, width = text.partition("x")
        if not (x and layers.isdecimal() and width.isdecimal()):
            raise UserError(f"cannot read shape {text!r}; write layers x width, for instance 14x44")
        found.append(ModelShape(int(layers), int(width), n_heads, context=context))
    return found


def machine(threads: int) -> dict[str, Any]:
    """Where this is measured, and how busy the machine was when it began: numbers of a busy machine mean little."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "threads": threads,
        "dtype": "float32",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def resident_growth(work: Callable[[], object]) -> int | None:
    """Bytes by which resident memory peaks while `work` runs, above what the process has now. None where it cannot be told.

    To be called in a process with `LARGE_BLOCK` as MALLOC_MMAP_THRESHOLD_, which gives large blocks back as soon as they are freed.
    """
    try:
        CLEAR_REFS.write_text("5")  # forget the peak so far
    except OSError:
        return None
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found, f"{STATUS} has no {key}"
    return int(found[1]) * 1024


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(where: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{where['cpu']}, {where['cores']} cores (load {where['load']:.2f} at start), {where['threads']} thread(s),"
        f" {where['dtype']}, torch {where['torch']}"
    )
