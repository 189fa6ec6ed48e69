"""A trained model back from its run folder."""

from __future__ import annotations

from pathlib import Path

from depthbench.build import build_model
from depthbench.errors import UserError
from depthbench.model.transformer import Transformer
from depthbench.study.store import RunFolder
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
