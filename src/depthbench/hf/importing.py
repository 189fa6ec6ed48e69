"""A Llama of Hugging Face as a finished `preln` run, so that it stands beside runs that were trained here.

Its result has the validation loss on the given tokens, and no training: 0 tokens, 0 seconds. The cell's seed is taken from the
hash of the weights, so that two checkpoints of one shape are two runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from depthbench.build import build_model, count_parameters
from depthbench.data import TokenData
from depthbench.errors import UserError
from depthbench.evaluate.validation import validate
from depthbench.files import create_json, make_folder
from depthbench.hf.llama import from_llama, shape_of
from depthbench.hf.reading import read_config, read_model
from depthbench.model.transformer import Transformer
from depthbench.model.weights_hash import hash_weights
from depthbench.study.cell import Cell, DataPin, DesignChoice
from depthbench.study.store import RunFolder, run_folder
from depthbench.study.train_cell import result_of
from depthbench.train.checkpoint import Position, save_checkpoint
from depthbench.train.loop import CHECKPOINT_FOLDER, Outcome, check_data
from depthbench.train.recipe import Recipe

PROOF_TOLERANCE = 1e-4  # of the largest logit
VALIDATION_BATCH = 16


def import_checkpoint(
    name: str, data: TokenData, source: str, out: Path, *, validation_windows: int = 512, allow_pickle: bool = False
) -> RunFolder:
    """Import the checkpoint `name`, validated on `data`, whose tokens its own tokenizer must have made; `source` names the data.

    Raises `UserError` if `preln` does not compute what the checkpoint computes, and if the tokens do not fit it.
    """
    shape = shape_of(read_config(name), name)
    recipe = Recipe(steps=1, batch_size=1, learning_rate=1e-3, validation_windows=validation_windows)
    check_data(shape, recipe, data)
    theirs = read_model(name, allow_pickle)
    model = build_model("preln", shape)
    try:
        model.load_state_dict(from_llama(theirs.state_dict(), list(model.state_dict())))
    except (KeyError, RuntimeError) as error:
        raise UserError(f"the weights of {name} are not those of a Llama of its configuration ({error})") from error
    _prove(model, theirs, name)
    digest = hash_weights(model)
    manifest = data.manifest
    pin = DataPin(Path(source).name, manifest.tokenizer, manifest.fingerprint, manifest.validation_sha256)
    cell = Cell(DesignChoice("preln"), "", shape, recipe, int(digest[:7], 16), pin)
    folder = run_folder(make_folder(out), cell)
    folder.create(cell)
    if folder.result() is not None:
        return folder
    found = validate(model, data, n_windows=validation_windows, batch_size=VALIDATION_BATCH, precision="fp32")
    tensors = {f"model/{key}": value for key, value in model.state_dict().items()}
    save_checkpoint(folder.path / CHECKPOINT_FOLDER, cell.identity, Position(step=recipe.steps), tensors)
    outcome = Outcome("done", recipe.steps, found, 0.0)
    result: dict[str, Any] = result_of(cell, model, count_parameters("preln", shape), data, outcome)
    create_json(folder.result_path, result | {"tokens": 0, "flops": 0, "imported_from": name, "weights_sha256": digest})
    return folder


def _prove(model: Transformer, theirs: Any, name: str) -> None:
    length = min(16, model.shape.context)
    tokens = torch.randint(model.shape.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, due = model.eval()(tokens), theirs.eval()(input_ids=tokens, use_cache=False).logits
    off = float((ours - due).abs().max() / due.abs().max().clamp_min(1e-30))
    if not off <= PROOF_TOLERANCE:
        raise UserError(f"preln with the weights of {name} gives logits that differ from its own by {off:.1e} of the largest")
