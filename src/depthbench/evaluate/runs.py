"""Evaluating the trained runs of a study, and Hugging Face checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depthbench.data.manifest import load_manifest
from depthbench.data.tokenizer import Tokenizer, folder_tokenizer
from depthbench.errors import UserError
from depthbench.evaluate.scored_models import ScoredCheckpoint, ScoredRun
from depthbench.evaluate.session import evaluate
from depthbench.evaluate.task_files import Task
from depthbench.files import EVALUATION_FILE, make_folder
from depthbench.hf.hub import shown_name, source_of
from depthbench.hf.reading import read_config, read_model, read_tokenizer
from depthbench.hf.results import refuse_another
from depthbench.model.weights_hash import hash_weights
from depthbench.study.load import load_run
from depthbench.study.store import RunFolder


def run_tokenizer(folder: RunFolder, data: Path) -> Tokenizer:
    """The tokenizer of the token files in `data`. Raises `UserError` if the run was trained with another one."""
    cell, manifest = folder.cell(), load_manifest(data)
    if manifest.tokenizer != cell.data.tokenizer or manifest.vocab_size > cell.shape.vocab_size:
        raise UserError(
            f"{folder.path.name} was trained on tokens of {cell.data.tokenizer} (vocabulary {cell.shape.vocab_size}), and {data}"
            f" has those of {manifest.tokenizer} ({manifest.vocab_size}); give --data made with the same tokenizer"
        )
    return folder_tokenizer(data)


def evaluate_run(
    folder: RunFolder,
    data: Path,
    tasks: Sequence[Task],
    *,
    device: str = "cpu",
    precision: str = "fp32",
    batch_size: int = 16,
) -> dict[str, Any]:
    """Score `tasks` by a finished run; the result lies in the run folder. `data` are token files made with its tokenizer."""
    cell = folder.cell()
    tokenizer = run_tokenizer(folder, data)
    model = load_run(folder.path)
    scored = ScoredRun(model, tokenizer, name=cell.label, device=device, precision=precision)
    about = {
        "kind": "run",
        "run": folder.path.name,
        "identity": cell.identity,
        "tokenizer": tokenizer.name,
        "context": scored.context,
    }
    return evaluate(scored, hash_weights(model), tokenizer.hash, precision, tasks, folder.path, about, batch_size)


def evaluate_checkpoint(
    name: str,
    folder: Path,
    tasks: Sequence[Task],
    *,
    device: str = "cpu",
    precision: str = "fp32",
    batch_size: int = 16,
    allow_pickle: bool = False,
) -> dict[str, Any]:
    """Score `tasks` by a Hugging Face checkpoint with its own tokenizer, and write the result into `folder`.

    Raises `UserError` if that holds the result of another one.
    """
    read_config(name)  # refuses what is no causal decoder
    model, tokenizer = read_model(name, allow_pickle), read_tokenizer(name, "save one beside it")
    weights = hash_weights(model)
    refuse_another(folder / EVALUATION_FILE, source_of(name), lambda: weights)
    scored = ScoredCheckpoint(model, tokenizer, shown_name(name), device=device, precision=precision)
    core = getattr(tokenizer, "backend_tokenizer", None)
    text = core.to_str() if core is not None else repr(sorted(tokenizer.get_vocab().items()))
    about = {
        "kind": "checkpoint",
        "name": shown_name(name),
        "source": source_of(name),
        "family": model.config.model_type,
        "context": scored.context,
    }
    digest = hashlib.sha256(text.encode()).hexdigest()
    return evaluate(scored, weights, digest, precision, tasks, make_folder(folder), about, batch_size)
