"""The training loop: updates, metrics, checkpoints, divergence as a result, and exact resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.nn.functional as F

from depthbench.data.batches import TokenData, check_fits, training_batch
from depthbench.errors import UserError
from depthbench.evaluate.validation import Validation, validate
from depthbench.files import LAYERS_FILE, METRICS_FILE
from depthbench.model.parallel import ALONE, Alone, lost_peer
from depthbench.model.precision import at_least_fp32, autocast
from depthbench.model.transformer import Transformer
from depthbench.row_file import bytes_up_to, continue_rows, sync, write_row
from depthbench.shape import ModelShape
from depthbench.train.checkpoint import (
    Position,
    checkpoint_path,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
    set_aside,
    unguarded,
)
from depthbench.train.execution import Execution, compile_model, find_device
from depthbench.train.layer_statistics import LayerStatistics
from depthbench.train.optimizer import load_optimizer_tensors, make_optimizer, optimizer_tensors
from depthbench.train.recipe import Recipe

CHECKPOINT_FOLDER = "checkpoint"
GUARD_SECONDS = 1.0  # how long a row may be written on the word of the guard before


@dataclass(frozen=True)
class StepReport:
    """What is told to whoever watches, after each update."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `status` is "done", "diverged" (at update `step`, counted from 1) or "stopped" (asked to; can continue)."""

    status: str
    step: int
    validation: Validation | None
    seconds: float


def ignore(_: object) -> None:
    """Tell nobody."""


def never() -> bool:
    """Do not stop."""
    return False


def check_data(shape: ModelShape, recipe: Recipe, data: TokenData) -> None:
    """Raise `UserError` if the tokens do not fit the model's vocabulary, its context, or the validation that is asked for."""
    if data.manifest.vocab_size > shape.vocab_size:
        raise UserError(
            f"the tokens have a vocabulary of {data.manifest.vocab_size}, the model one of {shape.vocab_size};"
            " give the model at least as many"
        )
    check_fits(data, shape.context, recipe.validation_windows or None)


@dataclass
class Training:
    """One run in a folder. `run` continues from the newest good checkpoint, or begins.

    `identity` names the cell, so that a checkpoint of another one is refused. `report` hears of every update, `notify` of
    anything unusual in words, and `should_stop` is asked after every update. `guard` is called before anything in the folder
    changes, before metrics rows at most once a second: it raises when another attempt has taken the run over, and no more is
    written. With `sharing`, each of several processes runs a `Training` of the same run; the leading one alone reports, asks
    and writes.
    """

    model: Transformer
    recipe: Recipe
    data: TokenData
    seed: int
    folder: Path
    identity: str
    execution: Execution = field(default_factory=Execution)
    report: Callable[[StepReport], None] = ignore
    notify: Callable[[str], None] = ignore
    should_stop: Callable[[], bool] = never
    guard: Callable[[], None] = unguarded
    sharing: Alone = ALONE

    def __post_init__(self) -> None:
        self.device = self.sharing.device(find_device(self.execution.device))
        check_data(self.model.shape, self.recipe, self.data)
        self.sharing.rows(self.recipe.batch_size)  # refuses a batch that is too small, before the others are called
        self.sharing.begin()
        torch.set_num_threads(self.execution.threads)
        self.model.to(self.device).train()
        self.called = self.sharing.wrap(self.model)
        self.optimizer = make_optimizer(self.model, self.recipe, self.execution.fused)
        self.layers = LayerStatistics(self.model, self.execution.layer_statistics)
        self.position = Position()
        self.saved_at = time.monotonic()
        self.guarded_at = -math.inf

    def run(self) -> Outcome:
        """Train to the end, to divergence, or until asked to stop. Raises `UserError` if a process that shares the run died."""
        try:
            return self._run()
        except RuntimeError as error:
            if self.sharing.size > 1 and lost_peer(error):
                raise UserError(f"another process of the run died; see what it said last in {self.folder / 'log.txt'}") from error
            raise

    def _run(self) -> Outcome:
        self._restore()
        if self.execution.compile:
            compile_model(self.model, whole_blocks=self.sharing.compiles_blocks)
        with ExitStack() as stack:
            metrics, layers = self._open_rows(stack) if self.sharing.leads else (None, None)
            while self.position.step < self.recipe.steps:
                loss, row = self._step()
                layers_row = self.layers.row(self.position.step, self.sharing)
                diverged = self._diverged(loss)
                if not diverged and self._validates_at(self.position.step):
                    row |= {f"validation_{k}": v for k, v in self._validate_row().items()}
                if metrics is not None:
                    self._guard_rows()
                    write_row(metrics, row)
                    self.position.metrics_bytes = metrics.tell()
                    if layers is not None and layers_row is not None:
                        write_row(layers, layers_row)
                    self.report(StepReport(self.position.step, self.recipe.steps, loss, row["tokens_per_second"]))
                if diverged:
                    return Outcome("diverged", self.position.step, None, self.position.seconds)
                if self.position.step < self.recipe.steps:
                    stop, save = self.sharing.decide(self.should_stop(), self._is_save_due())
                    if stop or save:
                        self._save()
                    if stop:
                        return Outcome("stopped", self.position.step, None, self.position.seconds)
        self._save(final=True)
        validation = self._validate()
        if not math.isfinite(validation.loss):  # the last update broke it
            return Outcome("diverged", self.position.step, None, self.position.seconds)
        return Outcome("done", self.position.step, validation, self.position.seconds)

    def _step(self) -> tuple[float, dict[str, Any]]:
        """One update. Returns its loss and its metrics row."""
        began = time.monotonic()
        step, tokens = self.position.step, self.recipe.batch_size * self.model.shape.context
        rate = self.recipe.learning_rate_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._accumulate_gradients(step, tokens)
        gradient_norm = self.sharing.clip(self.model, self.recipe.clip_norm)
        if math.isfinite(loss):
            self.optimizer.step()
        spent = time.monotonic() - began
        self.position.step, self.position.seconds = step + 1, self.position.seconds + spent
        return loss, {
            "step": step + 1,
            "loss": loss if math.isfinite(loss) else None,
            "gradient_norm": gradient_norm if math.isfinite(gradient_norm) else None,
            "learning_rate": rate,
            "tokens": (step + 1) * tokens,
            "tokens_per_second": round(tokens / spent, 1),
        }

    def _accumulate_gradients(self, step: int, tokens: int) -> float:
        """Gradients of the mean loss over the whole batch, whatever the micro-batch. Returns that mean, nats per token."""
        self.optimizer.zero_grad(set_to_none=True)
        total: torch.Tensor | float = 0.0
        size = self.recipe.batch_size
        pieces = list(self.sharing.micro_batches(size, min(self.execution.micro_batch_size or size, size)))
        for i, (rows, weight) in enumerate(pieces):
            inputs, targets = self._batch(step, rows)
            with self.sharing.accumulates(last=i == len(pieces) - 1), self.layers.watching(step + 1, weight):
                with autocast(self.device, self.recipe.precision):
                    logits = self.called(inputs)
                summed = F.cross_entropy(at_least_fp32(logits).flatten(0, 1), targets.flatten(), reduction="sum")
                mean = summed / tokens
                (mean if weight == 1 else mean * weight).backward()  # type: ignore[no-untyped-call]
            if weight:
                total = total + summed.detach()  # on the device, in the precision of the loss
        return float(self.sharing.total(total)) / tokens

    def _batch(self, step: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of some rows of an update's batch, on the device."""
        inputs, targets = training_batch(
            self.data,
            context=self.model.shape.context,
            batch_size=self.recipe.batch_size,
            seed=self.seed,
            step=step,
            rows=rows,
        )
        return torch.from_numpy(inputs).to(self.device), torch.from_numpy(targets).to(self.device)

    def _diverged(self, loss: float) -> bool:
        """Not finite, or above its running minimum by the margin for the stated number of updates."""
        if not math.isfinite(loss):
            return True
        position = self.position
        position.minimum = loss if position.minimum is None else min(position.minimum, loss)
        high = loss > position.minimum + self.recipe.divergence_margin
        position.high_steps = position.high_steps + 1 if high else 0
        return position.high_steps >= self.recipe.divergence_patience

    def _validates_at(self, step: int) -> bool:
        every = self.recipe.validation_every
        return every > 0 and step % every == 0 and step < self.recipe.steps

    def _validate(self) -> Validation:
        return validate(
            self.model,
            self.data,
            n_windows=self.recipe.validation_windows,
            batch_size=self.execution.micro_batch_size or self.recipe.batch_size,
            precision=self.recipe.precision,
            sharing=self.sharing,
        )

    def _validate_row(self) -> dict[str, float | None]:
        """A loss that is not finite is None: if the update broke the model, the next one says so."""
        found = self._validate()
        finite = math.isfinite(found.loss)
        return {"loss": found.loss if finite else None, "bits_per_byte": found.bits_per_byte if finite else None}

    def _open_rows(self, stack: ExitStack) -> tuple[BinaryIO, BinaryIO | None]:
        """The metrics and, if they are asked for, the layer statistics, cut back to where the checkpoint was taken."""
        metrics = continue_rows(self.folder / METRICS_FILE, self.position.metrics_bytes, self.guard)
        stack.enter_context(metrics)
        if not self.execution.layer_statistics:
            return metrics, None
        path = self.folder / LAYERS_FILE
        return metrics, stack.enter_context(continue_rows(path, bytes_up_to(path, self.position.step), self.guard))

    def _guard_rows(self) -> None:
        now = time.monotonic()
        if now - self.guarded_at >= GUARD_SECONDS:
            self.guard()
            self.guarded_at = now

    def _is_save_due(self) -> bool:
        every, seconds = self.execution.checkpoint_steps, self.execution.checkpoint_seconds
        by_steps = every > 0 and self.position.step % every == 0
        by_time = seconds > 0 and time.monotonic() - self.saved_at >= seconds
        return by_steps or by_time

    def _save(self, final: bool = False) -> None:
        """Save everything; the final checkpoint needs no optimizer, which is two thirds of it."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        if not final:
            tensors |= optimizer_tensors(self.model, self.optimizer)
        tensors = self.sharing.whole(tensors)
        if not self.sharing.leads:
            return
        self.guard()
        for name in (METRICS_FILE, LAYERS_FILE):
            sync(self.folder / name)  # rows reach the disk before the checkpoint that counts on them
        save_checkpoint(self.folder / CHECKPOINT_FOLDER, self.identity, self.position, tensors, self.guard)
        self.saved_at = time.monotonic()

    def _restore(self) -> None:
        """Continue from the newest checkpoint whose metrics are all there."""
        checkpoints = self.folder / CHECKPOINT_FOLDER
        loaded = None
        if self.sharing.leads:
            loaded = load_checkpoint(checkpoints, self.identity, self.notify, self.folder / METRICS_FILE)
        step = self.sharing.word(loaded[0].step if loaded else None)
        if step is not None:
            self.position, tensors = loaded or read_checkpoint(checkpoint_path(checkpoints, step), self.identity)
            tensors = self.sharing.shard(tensors, self.model)
            self.model.load_state_dict(_model_tensors(tensors))
            load_optimizer_tensors(self.model, self.optimizer, tensors)
        self.sharing.decide(True)  # nobody changes the folder before all have read it
        if self.sharing.leads:
            self.guard()
            set_aside(checkpoints, after=self.position.step)  # they count on metrics that are about to be written anew


def _model_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}


def load_trained(model: Transformer, folder: Path, identity: str, steps: int) -> Transformer:
    """Put the weights that a run of `steps` updates ended with into `model`. Raises `UserError` if they are not there: an earlier
    checkpoint is never taken for the trained model.
    """
    path = checkpoint_path(folder / CHECKPOINT_FOLDER, steps)
    loaded = load_checkpoint(folder / CHECKPOINT_FOLDER, identity, ignore)
    if (loaded is None or loaded[0].step != steps) and path.exists():
        raise UserError(f"{path}, the last checkpoint, is damaged or was changed; restore it, or train the run anew")
    if loaded is None or loaded[0].step != steps:
        raise UserError(f"{folder} has no checkpoint of step {steps}, its last; restore it, or train the run to the end")
    model.load_state_dict(_model_tensors(loaded[1]))
    return model
