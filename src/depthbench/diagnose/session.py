"""A diagnosis from start to end: tasks in batches, each on disk as it ends, then one JSON and one file of arrays.

    FOLDER/diagnosis.json    what was found, on which windows, with what
    FOLDER/diagnosis.npz     every score of every window, for other statistics

A killed diagnosis continues after its last batch; what it had is kept under a hash of weights, windows, settings and code.
"""

from __future__ import annotations

import io
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depthbench import __version__
from depthbench.code_hash import diagnosing_hash
from depthbench.data.batches import Stored
from depthbench.diagnose.ours import OurSubject
from depthbench.diagnose.settings import Settings
from depthbench.diagnose.subject import Subject
from depthbench.diagnose.summary import summarise
from depthbench.diagnose.tasks import Arrays, Task, joined, tasks
from depthbench.errors import UserError
from depthbench.files import DIAGNOSIS_FILE, DIAGNOSIS_FORMAT, content_hash, read_json, write_bytes, write_json
from depthbench.progress import Progress
from depthbench.residual.attnres_block import AttnResBlock

RESULT, FORMAT = DIAGNOSIS_FILE, DIAGNOSIS_FORMAT
ARRAYS, PARTS = "diagnosis.npz", ".diagnosis"


def diagnose(
    subject: Subject,
    untrained: Callable[[], Subject] | None,
    tokens: Stored,
    folder: Path,
    settings: Settings,
    about: dict[str, Any],
) -> dict[str, Any]:
    """Diagnose `subject` on windows of `tokens`, write the result into `folder` and return it; `about` says what model and data
    are.

    Measures that an earlier diagnosis of the same weights and code has, and this one does not take, are kept.
    """
    todo, without = tasks(subject, untrained, tokens, settings)
    if not todo:
        raise UserError(f"nothing to measure: {'; '.join(without)}")
    identity = {"weights": subject.weights_sha256(), "code": diagnosing_hash(), "precision": subject.precision, "format": FORMAT}
    key = content_hash(
        {**identity, "settings": asdict(settings), "about": about, "windows": {task.name: task.windows.sha256 for task in todo}}
    )
    before = earlier(folder, identity)
    if before and before.get("key") == key:
        return before
    parts = folder / PARTS / key[:16]
    arrays = _measure(subject, todo, parts)
    segments = subject.model.residual if isinstance(subject, OurSubject) else None
    block_size = segments.block_size if isinstance(segments, AttnResBlock) else None
    kept = before["measures"] if before else {}
    sizes = {task.measure: task.windows for task in todo}
    content = {
        "format": FORMAT,
        "key": key,
        "identity": identity,
        "about": about,
        "subject": {"name": subject.name, "design": subject.design, "n_layers": subject.depth, "context": subject.context},
        "device": str(subject.device),
        "precision": subject.precision,
        "versions": {"depthbench": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": asdict(settings),
        "without": without,
        "windows": (before["windows"] if before else {})
        | {
            measure: {
                "n": len(windows),
                "length": int(windows.tokens.shape[1]),
                "seed": windows.seed,
                "sha256": windows.sha256,
                "offsets": windows.offsets.tolist(),
            }
            for measure, windows in sizes.items()
        },
        "measures": kept | summarise(arrays, settings, block_size),
    }
    if before:
        arrays = _load_arrays(folder / ARRAYS) | arrays
    write_bytes(
        folder / ARRAYS, _packed({f"{task}/{name}": value for task, found in arrays.items() for name, value in found.items()})
    )
    write_json(folder / RESULT, content)
    shutil.rmtree(parts, ignore_errors=True)
    with suppress(OSError):  # another diagnosis has parts there
        (folder / PARTS).rmdir()
    return content


def _measure(subject: Subject, todo: list[Task], parts: Path) -> dict[str, Arrays]:
    """The arrays of every task, from disk where an earlier attempt has put them."""
    parts.mkdir(parents=True, exist_ok=True)
    pieces = [
        (task, number, batch, parts / f"{task.name}-{number}.npz") for task in todo for number, batch in enumerate(task.batches())
    ]
    costs = [task.cost * batch.size for task, _, batch, _ in pieces]
    done = sum(cost for (_, _, _, path), cost in zip(pieces, costs, strict=True) if path.exists())
    found: dict[str, list[Arrays]] = {}
    with Progress(subject.name, sum(costs), start=done) as progress:
        for (task, _, batch, path), cost in zip(pieces, costs, strict=True):
            if not path.exists():
                model = task.subject()
                with model.computing():
                    write_bytes(path, _packed(task.work(model.begin(torch.from_numpy(batch)))))
                done += cost
                progress.update(done, task.name)
            found.setdefault(task.name, []).append(_read(path))
    return {name: joined(batches) for name, batches in found.items()}


def earlier(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """A diagnosis in `folder` of the same weights, code and precision."""
    try:
        found: dict[str, Any] = read_json(folder / RESULT)
    except UserError:
        return None
    matches = isinstance(found, dict) and found.get("identity") == identity and (folder / ARRAYS).exists()
    return found if matches else None


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _load_arrays(path: Path) -> dict[str, Arrays]:
    found: dict[str, Arrays] = {}
    for name, value in _read(path).items():
        task, _, array = name.rpartition("/")
        found.setdefault(task, {})[array] = value
    return found
