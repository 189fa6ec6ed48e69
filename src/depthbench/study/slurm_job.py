"""What a Slurm job does: train one cell, and make room in time.

Shortly before its time limit, and on some sites before a preemption, Slurm sends SIGUSR2: the run is saved and the job asks to be
started anew. SIGTERM (preemption, `scancel`) saves too, and leaves it to Slurm or to the runner whether there is a next time. A job
that is killed without a word goes on from its last checkpoint.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from depthbench.study.slurm_queue import JobRef
from depthbench.study.worker import log_to


class TrainInJob:
    """What is handed to submitit: called with a run folder, token files and the fields of an `Execution`."""

    def __call__(self, run: str, data: str, execution: Mapping[str, Any]) -> str:
        """Train the cell. Returns how it ended, as `train_cell` does; what goes wrong is in the run's `failure.json`."""
        from depthbench.study.ranks import train_run
        from depthbench.train.execution import Execution

        asked: list[int] = []

        def ask(number: int, frame: FrameType | None) -> None:
            asked.append(number)

        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, ask)
        how = Execution(**execution)
        folder = Path(run)
        with log_to(folder / "log.txt"):
            status = train_run(folder, Path(data), how, should_stop=lambda: bool(asked))
        if status == "stopped" and signal.SIGUSR2 in asked:
            start_anew()
        return status

    def checkpoint(self, run: str, data: str, execution: Mapping[str, Any]) -> Any:
        """What submitit asks for if SIGUSR2 arrives before the run has begun: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, run, data, execution)


def start_anew() -> None:
    """Put this job back into the queue. If the site refuses, the runner will find that it has gone, and submit the run again."""
    job = JobRef.here()
    if job is not None:
        subprocess.run(["scontrol", "requeue", job.id], check=False)
