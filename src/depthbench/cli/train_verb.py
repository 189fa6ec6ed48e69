"""`depthbench train`: one run, in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType

from depthbench.cli import arguments
from depthbench.cli.output import print_json
from depthbench.cli.setup import cores, execution_for, is_small, pin, warn
from depthbench.data import TokenData
from depthbench.data.defaults import find_tokens
from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.progress import Progress, duration
from depthbench.shape import ModelShape, human
from depthbench.study.cell import Cell
from depthbench.study.ranks import train_run
from depthbench.study.store import run_folder
from depthbench.study.study import Study
from depthbench.study.train_cell import CLAIMED
from depthbench.train.loop import StepReport, check_data
from depthbench.train.recipe import Recipe


def train(verb: arguments.Train) -> int:
    """One run, in this process."""
    tokens = find_tokens(verb.data, "bytes")
    data = TokenData.open(tokens)
    shape = ModelShape(
        n_layers=verb.n_layers,
        d_model=verb.d_model,
        n_heads=verb.heads,
        n_kv_heads=verb.kv_heads,
        d_ff=verb.d_ff,
        vocab_size=verb.vocab_size or data.manifest.vocab_size,
        context=verb.context,
    )
    wanted = {item.name for item in fields(Recipe)}
    recipe = Recipe(**{key: value for key, value in vars(verb).items() if key in wanted})
    study = Study("train", (verb.design,), (verb.learning_rate,), recipe, shapes=(shape,), seeds=(verb.seed,))
    (cell,) = study.cells(pin(verb.data, data))
    execution = execution_for(verb.hardware, 1 if is_small([shape], verb.hardware.device) else cores())
    check_data(shape, recipe, data)
    folder = run_folder(make_folder(verb.out), cell)
    folder.create(cell)
    start = folder.state().step
    with _asked_to_stop() as stopping, Progress(cell.label, recipe.steps, start=start) as progress:

        def show(step: StepReport) -> None:
            progress.update(step.step, f"step {step.step}/{step.steps}  loss {step.loss:.4f}  {step.tokens_per_second:,.0f} tok/s")

        status = train_run(
            folder.path, tokens, execution, opened=lambda _: data, report=show, notify=warn, should_stop=lambda: bool(stopping)
        )
    if status == CLAIMED:
        raise UserError(f"{folder.path} is being trained by another process; wait for it or stop it")
    if status == "stopped":
        print(f"stopped and saved; the same command continues. {folder.path}", file=sys.stderr)
        return 130
    return _print_result(cell, folder.path, folder.result() or {}, verb.json)


def _print_result(cell: Cell, path: Path, result: dict[str, object], as_json: bool) -> int:
    if as_json:
        print_json({"run": str(path), **result})
    elif result["status"] == "diverged":
        print(f"{cell.label}: diverged at update {result['steps']}\n{path}")
    else:
        parameters = result["parameters"]
        assert isinstance(parameters, dict)
        print(
            f"{cell.label}: validation loss {result['loss']:.4f} nats per token, {result['bits_per_byte']:.4f} bits per byte"
            f" over {result['validation_tokens']:,} tokens\n"
            f"{human(parameters['total'])} parameters ({human(parameters['backbone'])} backbone), {result['tokens']:,} training"
            f" tokens in {duration(float(str(result['seconds'])))}\n{path}"
        )
    return 0


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that fills when SIGINT or SIGTERM arrives; a second one ends at once."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
