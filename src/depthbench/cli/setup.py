"""What the verbs share: finding the tokens, applying the changes to a study, choosing workers and threads."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

from depthbench.cli import arguments
from depthbench.data import TokenData
from depthbench.errors import UserError
from depthbench.shape import ModelShape
from depthbench.study.catalogue import find_study
from depthbench.study.cell import DataPin
from depthbench.study.override import Overrides, override
from depthbench.study.slurm_options import SlurmOptions
from depthbench.study.study import Study
from depthbench.train.execution import Execution, find_device

SMALL_PARAMETERS = 20_000_000  # below this a core trains a cell as fast alone as with help (benchmarks/workers.py)


def use_threads(threads: int, shapes: Sequence[ModelShape] = ()) -> None:
    """Let torch use so many; 0 for what OMP_NUM_THREADS says, or else all cores, or one if the models have these `shapes` and are
    small: their operations are so short that threads wait for each other. Raises `UserError` for a negative number.
    """
    if threads < 0:
        raise UserError(f"threads must be at least 1, or 0 to choose by size, got {threads}")
    said = os.environ.get("OMP_NUM_THREADS", "").strip()
    asked = threads or (int(said) if said.isdecimal() else 0)
    torch.set_num_threads(asked or (1 if shapes and is_small(shapes, "cpu") else cores()))


def refuse_with_runs(*options: tuple[str, object]) -> None:
    """Raise `UserError` for the options, name and value, that are given with run folders, to which they say nothing."""
    given = [name for name, value in options if value]
    if given:
        raise UserError(f"{', '.join(given)} goes with --hf alone; leave it out for run folders, whose results lie in them")


def pin(source: str, data: TokenData) -> DataPin:
    """What a cell records of its data."""
    manifest = data.manifest
    return DataPin(Path(source).name, manifest.tokenizer, manifest.fingerprint, manifest.validation_sha256)


def open_study(name: str, changes: arguments.StudyOptions) -> Study:
    """The study with the command line's changes."""
    known = {item.name for item in fields(Overrides)}
    return override(find_study(name), Overrides(**{k: v for k, v in vars(changes).items() if k in known}))


def is_small(shapes: Sequence[ModelShape], device: str) -> bool:
    """Whether single-threaded workers side by side beat one worker with all cores."""
    return device == "cpu" and max(shape.total_parameters for shape in shapes) <= SMALL_PARAMETERS


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execution_for(hardware: arguments.Hardware, threads: int) -> Execution:
    """The execution on this machine that the options ask for. Raises `UserError` if the device is missing."""
    device = find_device(hardware.device)
    if hardware.compile and device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise UserError("--compile on CPU needs a C++ compiler, and none is found; install g++ or leave --compile out")
    if device.type == "cuda" and hardware.processes_per_run > torch.cuda.device_count():
        raise UserError(
            f"--processes-per-run {hardware.processes_per_run}: there are {torch.cuda.device_count()} CUDA devices here"
        )
    return _execution(hardware, threads, nodes=1)


def execution_on_slurm(hardware: arguments.Hardware, options: SlurmOptions) -> Execution:
    """The execution in a job. The device is not looked for here: where jobs are submitted there may be none.

    Raises `UserError` if it does not go with what the job asks the site for.
    """
    processes = hardware.processes_per_run
    if hardware.device.startswith("cuda"):
        if not options.gpus:
            raise UserError(f"--device {hardware.device} needs GPUs; ask for them: --slurm gpus=1,…")
        if processes > options.gpus * options.nodes:
            asked = f"{options.gpus} on each of {options.nodes} nodes" if options.nodes > 1 else str(options.gpus)
            raise UserError(f"--processes-per-run {processes} needs as many GPUs, and --slurm asks for {asked}")
    elif options.gpus:
        raise UserError(
            f"--slurm asks for gpus={options.gpus}, and --device {hardware.device} does not use them; add --device cuda"
        )
    if options.nodes > 1 and processes < options.nodes:
        raise UserError(f"--slurm nodes={options.nodes} needs --processes-per-run {options.nodes} or a multiple of it")
    return _execution(hardware, max(1, options.cpus // max(1, processes // options.nodes)), options.nodes)


def _execution(hardware: arguments.Hardware, threads: int, nodes: int) -> Execution:
    wanted = dict(vars(hardware))
    processes, parallel = wanted.pop("processes_per_run"), wanted.pop("parallel")
    if parallel and processes == 1:
        raise UserError(f"--parallel {parallel} is for several processes; add --processes-per-run N")
    wanted |= {"threads": hardware.threads or threads, "processes": processes, "parallel": parallel or "ddp", "nodes": nodes}
    return Execution(**wanted)


def warn_of_budget(study: Study) -> None:
    """Name the shapes that miss their budget by more than it tolerates."""
    for tier in study.all_tiers():
        for shape in tier.shapes:
            if abs(tier.budget.miss(shape)) > tier.budget.tolerance:
                warn(f"{shape.n_layers} × {shape.d_model} lies {tier.budget.miss(shape):+.1%} off its budget")


def warn(text: str) -> None:
    """A line on stderr."""
    print(f"warning: {text}", file=sys.stderr)
