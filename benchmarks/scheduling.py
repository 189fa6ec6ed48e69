"""What scheduling costs: a study of many dummy cells, its wall time against the training time inside it, and the time of `status`.

A dummy cell is one update of a one-layer model, so nearly all of the time is the runner, the worker's fixed costs and the disk.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from depthbench import Budget
from depthbench.data import TokenData, ensure
from depthbench.study.cell import DataPin
from depthbench.study.runner import Runner
from depthbench.study.search import StudyWork
from depthbench.study.store import find_runs
from depthbench.study.study import Study
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe


def dummy_study(cells: int) -> Study:
    """`cells` runs of one update each."""
    return Study(
        name="dummy",
        designs=("preln",),
        learning_rates=(1e-3,),
        recipe=Recipe(steps=1, batch_size=1, learning_rate=1e-3, validation_windows=1),
        budget=Budget(1e3, match="backbone", n_heads=2, vocab_size=257, context=8, tolerance=9),
        n_layers=(1,),
        seeds=tuple(range(cells)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    tokens = ensure()
    manifest = TokenData.open(tokens).manifest
    pin = DataPin("stdlib", "bytes", manifest.fingerprint, manifest.validation_sha256)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        began = time.monotonic()
        work = StudyWork(dummy_study(arguments.cells), pin)
        report = Runner(work, tokens, out, workers=arguments.workers, execution=Execution()).run()
        wall = time.monotonic() - began
        assert report.count("done") == arguments.cells, report
        training = sum(float((run.result() or {})["seconds"]) for run in find_runs(out))
        command = [sys.executable, "-m", "depthbench", "status", str(out), "--json"]
        times = []
        for _ in range(5):
            began = time.monotonic()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times.append(time.monotonic() - began)
        began = time.monotonic()
        Runner(StudyWork(dummy_study(arguments.cells), pin), tokens, out, workers=arguments.workers, execution=Execution()).run()
        again = time.monotonic() - began
    found = {
        "machine": platform.processor() or platform.machine(),
        "cells": arguments.cells,
        "workers": arguments.workers,
        "wall_seconds": round(wall, 2),
        "training_seconds_in_cells": round(training, 2),
        "overhead_ms_per_cell": round(1000 * (wall - training / arguments.workers) / arguments.cells, 2),
        "second_run_seconds": round(again, 2),
        "status_seconds_median": round(sorted(times)[2], 2),
    }
    print(json.dumps(found) if arguments.json else "\n".join(f"{key:28} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
