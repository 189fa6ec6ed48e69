"""Finished runs, and a trained model back from its run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from depthbench.build import build_model
from depthbench.data.defaults import find_tokens
from depthbench.errors import UserError
from depthbench.model.transformer import Transformer
from depthbench.study.store import RunFolder, find_runs
from depthbench.train.loop import load_trained


def load_run(path: str | Path) -> Transformer:
    """The model of a finished run, with its trained weights, on the CPU in evaluation mode.

    Raises:
        UserError: the folder is no run folder, its run has not finished, or its weights cannot be read.
    """
    folder = RunFolder(Path(path))
    cell = folder.cell()
    result = folder.result()
    if result is None or result["status"] != "done":
        raise UserError(f"{path} has not finished ({folder.state().status}); train it to its end first")
    model = build_model(folder.design_name(cell), cell.shape, seed=cell.seed, **dict(cell.design.options))
    return load_trained(model, folder.path, cell.identity, cell.recipe.steps).eval()


def find_run_folders(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs that paths name: run folders themselves, and of an --out every run that has ended with a loss.

    Raises `UserError` for what is neither, for a run that has not finished, and for an --out without a finished run.
    """
    found = []
    for path in paths:
        if (path / "cell.json").exists() or not (path / "cells").is_dir():
            found.append(_finished(RunFolder(path)))
            continue
        done = [folder for folder in find_runs(path) if folder.state().status == "done"]
        if not done:
            raise UserError(f"{path} has no finished run yet; see depthbench status {path}")
        found += done
    return found


def _finished(folder: RunFolder) -> RunFolder:
    if folder.path.is_file():
        raise UserError(f"{folder.path} is a file; give a run folder, or the --out of a study")
    if not folder.path.is_dir():
        raise UserError(f"{folder.path} does not exist; give a run folder, or the --out of a study")
    if not (folder.path / "cell.json").exists():
        raise UserError(f"{folder.path} is no run folder (it has no cell.json); for a Hugging Face checkpoint: --hf {folder.path}")
    state = folder.state()
    if state.status != "done":
        done = f" at step {state.step} of {folder.cell().recipe.steps}" if state.step else ""
        raise UserError(f"{folder.path} has no trained model: it is {state.status}{done}; train it to its end first")
    return folder


def find_run(path: Path) -> RunFolder:
    """The one finished run that `path` names. Raises `UserError` as `find_run_folders` does, and if there are several."""
    folders = find_run_folders([path])
    if len(folders) > 1:
        raise UserError(f"{path} holds {len(folders)} finished runs; give one of them, such as {folders[0].path}")
    return folders[0]


def tokens_of(folder: RunFolder, data: str) -> Path:
    """The token files that go with a run: `data`, or those of its training if they can be found."""
    pinned = folder.cell().data
    try:
        return find_tokens(data or pinned.source, pinned.tokenizer)
    except UserError as error:
        if data:
            raise
        raise UserError(f"the data of {folder.path.name} is not found here ({error}); give --data FOLDER") from error
