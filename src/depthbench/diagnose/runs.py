"""Diagnosing the runs of a study: a trained model from its folder, its untrained twin, and the tokens it was validated on."""

from __future__ import annotations

from typing import Any

from depthbench.build import build_model
from depthbench.data import TokenData
from depthbench.diagnose.ours import OurSubject
from depthbench.diagnose.session import diagnose
from depthbench.diagnose.settings import Settings
from depthbench.errors import UserError
from depthbench.study.load import load_run
from depthbench.study.store import RunFolder


def diagnose_run(
    folder: RunFolder, data: TokenData, settings: Settings, *, device: str = "cpu", precision: str = "fp32"
) -> dict[str, Any]:
    """Diagnose a finished run on the validation tokens of `data`, beside its untrained twin of the same seed; the result lies in
    the run folder. Raises `UserError` if the tokens were made by another tokenizer than the model was trained with.
    """
    cell = folder.cell()
    manifest = data.manifest
    if manifest.tokenizer != cell.data.tokenizer or manifest.vocab_size > cell.shape.vocab_size:
        raise UserError(
            f"{folder.path.name} was trained on tokens of {cell.data.tokenizer} (vocabulary {cell.shape.vocab_size}), and the data"
            f" has those of {manifest.tokenizer} ({manifest.vocab_size}); give --data made with the same tokenizer"
        )
    label = str(cell.design)
    model = load_run(folder.path)
    subject = OurSubject(model, name=cell.label, design=label, device=device, precision=precision)

    def untrained() -> OurSubject:
        if not twin:
            fresh = build_model(folder.design_name(cell), cell.shape, seed=cell.seed, **dict(cell.design.options))
            twin.append(OurSubject(fresh, name=f"untrained {cell.label}", design=label, device=device, precision=precision))
        return twin[0]

    twin: list[OurSubject] = []
    about = {
        "kind": "run",
        "run": folder.path.name,
        "identity": cell.identity,
        "shape": {"n_layers": cell.shape.n_layers, "d_model": cell.shape.d_model},
        "data": {
            "tokenizer": manifest.tokenizer,
            "validation_sha256": manifest.validation_sha256,
            "same_as_training": manifest.fingerprint == cell.data.fingerprint,
        },
    }
    return diagnose(subject, untrained, data.validation, folder.path, settings, about)
