"""Training one cell in its run folder: claim it, train or continue, and write the result last and once."""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

import depthbench
from depthbench.build import ParameterCounts, build_model, count_parameters
from depthbench.code_hash import code_hash
from depthbench.cost.flops import training_flops
from depthbench.data.batches import TokenData
from depthbench.errors import UserError
from depthbench.files import create_json, read_json, write_json
from depthbench.model.parallel import ALONE, Alone
from depthbench.model.transformer import Transformer
from depthbench.study.attempt import Attempt, Fenced
from depthbench.study.cell import Cell
from depthbench.study.store import RESULT_FORMAT, RunFolder
from depthbench.train.execution import Execution, find_device
from depthbench.train.loop import Outcome, StepReport, Training, ignore, never

CLAIMED = "claimed"


def train_cell(
    folder: RunFolder,
    data: TokenData,
    execution: Execution,
    *,
    report: Callable[[StepReport], None] = ignore,
    notify: Callable[[str], None] = ignore,
    should_stop: Callable[[], bool] = never,
    sharing: Alone = ALONE,
) -> str:
    """Train the cell of `folder` to its end, and say how it ended: "done", "diverged", "stopped", or "claimed" when another
    attempt holds it or has taken it over. A run that has its result is not touched.

    Raises:
        UserError: the tokens are not the cell's, the device is missing, a checkpoint belongs to another cell.
        Exception: whatever went wrong in training; it is recorded in `failure.json` first.
    """
    with folder.claimed() as attempt:
        if attempt is None:
            return CLAIMED
        finished = folder.result()
        if finished is not None:
            return str(finished["status"])
        folder.failure_path.unlink(missing_ok=True)
        try:
            return _train(folder, attempt, data, execution, report, notify, should_stop, sharing)
        except Fenced as error:
            notify(str(error))
            return CLAIMED
        except BaseException as error:
            if isinstance(error, Exception) and not attempt.is_current():  # with another at work in the folder, things fail
                notify(f"attempt {attempt.number} was followed by another one, and ended with {type(error).__name__}: {error}")
                return CLAIMED
            _write_failure(folder, error)
            raise


def _train(
    folder: RunFolder,
    attempt: Attempt,
    data: TokenData,
    execution: Execution,
    report: Callable[[StepReport], None],
    notify: Callable[[str], None],
    should_stop: Callable[[], bool],
    sharing: Alone,
) -> str:
    cell = folder.cell()
    if data.manifest.fingerprint != cell.data.fingerprint:
        raise UserError(
            f"{folder.path.name} was planned for tokens {cell.data.fingerprint[:12]}, and these are"
            f" {data.manifest.fingerprint[:12]}; give the same data, or start in another --out"
        )
    find_device(execution.device)
    _record_environment(folder, attempt, execution)
    design = folder.design_name(cell)
    model = build_model(design, cell.shape, seed=cell.seed, **dict(cell.design.options))
    counts = count_parameters(design, cell.shape, **dict(cell.design.options))
    _assert_counts(cell, model, counts)
    training = Training(
        model,
        cell.recipe,
        data,
        seed=cell.seed,
        folder=folder.path,
        identity=cell.identity,
        execution=execution,
        report=report,
        notify=notify,
        should_stop=should_stop,
        guard=attempt.guard,
        sharing=sharing,
    )
    outcome = training.run()
    if outcome.status != "stopped":
        attempt.guard()
        if not create_json(folder.result_path, result_of(cell, model, counts, data, outcome)):
            raise Fenced(f"{folder.path.name} has its result already, from another attempt")
    return outcome.status


def follow_cell(folder: RunFolder, data: TokenData, execution: Execution, sharing: Alone) -> None:
    """Train along with the process that leads the run of `folder`. Writes nothing."""
    cell = folder.cell()
    model = build_model(folder.design_name(cell), cell.shape, seed=cell.seed, **dict(cell.design.options))
    Training(
        model, cell.recipe, data, seed=cell.seed, folder=folder.path, identity=cell.identity, execution=execution, sharing=sharing
    ).run()


def _assert_counts(cell: Cell, model: Transformer, counts: ParameterCounts) -> None:
    """What is trained has exactly the parameters that tables and plans show."""
    built = sum(parameter.numel() for parameter in model.parameters())
    if built != counts.total:
        raise RuntimeError(f"{cell.label}: built {built} parameters, counted {counts.total}")


def result_of(cell: Cell, model: Transformer, counts: ParameterCounts, data: TokenData, outcome: Outcome) -> dict[str, Any]:
    """The content of `result.json`. A diverged run has no loss: it is a result all the same."""
    tokens = outcome.step * cell.recipe.batch_size * cell.shape.context
    validation = outcome.validation
    return {
        "format": RESULT_FORMAT,
        "status": outcome.status,
        "loss": validation.loss if validation else None,
        "bits_per_byte": validation.bits_per_byte if validation else None,
        "validation_tokens": validation.tokens if validation else None,
        "validation_bytes": validation.n_bytes if validation else None,
        "steps": outcome.step,
        "tokens": tokens,
        "seconds": round(outcome.seconds, 3),
        "tokens_per_second": round(tokens / outcome.seconds, 1) if outcome.seconds > 0 else 0.0,
        "flops": training_flops(model.residual, tokens),
        "parameters": asdict(counts),
        "data_fingerprint": data.manifest.fingerprint,
        "validation_sha256": data.manifest.validation_sha256,
        "identity": cell.identity,
        "code_version": depthbench.__version__,
        "code_hash": code_hash(),
        "finished_at": _now(),
    }


def record_failure(folder: RunFolder, error: BaseException) -> None:
    """Note that a run failed whose process is gone, unless another one has taken the run over."""
    if not folder.is_claimed():
        _write_failure(folder, error)


def _write_failure(folder: RunFolder, error: BaseException) -> None:
    """Write `failure.json`: the last line for tables, the traceback for whoever mends it."""
    line = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}".rstrip(": ")
    with suppress(OSError):  # a full disk must not hide the error that is on its way up
        write_json(
            folder.failure_path,
            {"error": line.splitlines()[0] if line else "unknown", "traceback": traceback.format_exception(error), "at": _now()},
        )


def _record_environment(folder: RunFolder, attempt: Attempt, execution: Execution) -> None:
    """`environment.json`: one entry an attempt, so that a resumed run shows every machine it ran on."""
    path = folder.path / "environment.json"
    attempts = read_json(path)["attempts"] if path.exists() else []
    device = torch.cuda.get_device_name(execution.device) if execution.device.startswith("cuda") else platform.processor()
    attempts.append(
        {
            "attempt": attempt.number,
            "depthbench": depthbench.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "host": platform.node(),
            "job": asdict(attempt.owner.job) if attempt.owner.job else None,
            "cores": os.cpu_count(),
            "device_name": device or platform.machine(),
            "execution": asdict(execution),
            "started_at": _now(),
        }
    )
    write_json(path, {"attempts": attempts})


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
