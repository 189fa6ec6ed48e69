"""A diagnosis from start to end: tasks in batches, each on disk as it ends, then one JSON and one file of arrays.

    FOLDER/diagnosis.json    what was found, on which windows, with what
    FOLDER/diagnosis.npz     every score of every window, for other statistics

A killed diagnosis continues after its last batch; what it had is kept under a hash of weights, windows, settings and code. Arrays
of the same weights, code and windows that a finished one has left are not computed again, only summed up anew.
"""

from __future__ import annotations

import hashlib
import io
import platform
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depthbench import __version__
from depthbench.code_hash import diagnosing_hash
from depthbench.data.batches import Stored
from depthbench.diagnose.ours import OurSubject
from depthbench.diagnose.settings import MEASURES, Settings
from depthbench.diagnose.subject import Subject
from depthbench.diagnose.summary import summarise
from depthbench.diagnose.tasks import UNTRAINED, Arrays, Task, joined, measure_of, tasks
from depthbench.diagnose.windows import Windows
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

    Measures that an earlier diagnosis of the same weights and code has, and this one does not take, are kept; so is what it has of
    the same measure and the same windows, such as other rules or the control.
    """
    todo, without = tasks(subject, untrained, tokens, settings)
    if not todo:
        raise UserError(f"nothing to measure: {'; '.join(without)}")
    identity = {"weights": subject.weights_sha256(), "code": diagnosing_hash(), "precision": subject.precision, "format": FORMAT}
    windows = {task.measure: _about(task.windows) for task in todo}
    key = content_hash(
        {**identity, "settings": asdict(settings), "about": about, "windows": windows, "tasks": [t.name for t in todo]}
    )
    before = earlier(folder, identity)
    if before and before.get("key") == key:
        return before
    kept = _load_arrays(folder / ARRAYS) if before else {}
    if before:  # a measure has one set of windows
        same = {measure for measure in windows if before["windows"].get(measure) == windows[measure]}
        kept = {name: found for name, found in kept.items() if measure_of(name) in same or measure_of(name) not in windows}
    parts = folder / PARTS / key[:16]
    arrays = kept | _measure(subject, [task for task in todo if task.name not in kept], parts)
    arrays = {name: arrays[name] for name in sorted(arrays, key=partial(_order, subject.skip_rules))}
    segments = subject.model.residual if isinstance(subject, OurSubject) else None
    block_size = segments.block_size if isinstance(segments, AttnResBlock) else None
    now = {name: found for name, found in arrays.items() if measure_of(name) in windows}
    packed = _packed({f"{task}/{name}": value for task, found in arrays.items() for name, value in found.items()})
    content = {
        "format": FORMAT,
        "key": key,
        "identity": identity,
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
        "about": about,
        "subject": {"name": subject.name, "design": subject.design, "n_layers": subject.depth, "context": subject.context},
        "device": str(subject.device),
        "precision": subject.precision,
        "versions": {"depthbench": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": (before["settings"] if before else {}) | {measure: settings.of(measure) for measure in windows},
        "without": without,
        "windows": (before["windows"] if before else {}) | windows,
        "measures": (before["measures"] if before else {}) | summarise(now, settings, block_size),
    }
    write_bytes(folder / ARRAYS, packed)
    write_json(folder / RESULT, content)
    shutil.rmtree(parts, ignore_errors=True)
    with suppress(OSError):  # another diagnosis has parts there
        (folder / PARTS).rmdir()
    return content


def _about(windows: Windows) -> dict[str, Any]:
    """What pins the windows of a measure."""
    return {
        "n": len(windows),
        "length": int(windows.tokens.shape[1]),
        "seed": windows.seed,
        "sha256": windows.sha256,
        "offsets": windows.offsets.tolist(),
    }


def _order(rules: Sequence[str], task: str) -> tuple[int, bool, int]:
    """Measures in their order, the trained model first, the published rule first: readers take the first."""
    parts = task.split(".")
    rule = rules.index(parts[2]) if len(parts) > 2 and parts[2] in rules else 0
    return MEASURES.index(parts[0]), UNTRAINED in parts, rule


def _measure(subject: Subject, todo: list[Task], parts: Path) -> dict[str, Arrays]:
    """The arrays of every task, from disk where an earlier attempt has put them."""
    if not todo:
        return {}
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
    """A diagnosis in `folder` of the same weights, code and precision, with its arrays: a kill between the two files, or damage to
    one, leaves arrays that are not those that the JSON tells of.
    """
    try:
        found: dict[str, Any] = read_json(folder / RESULT)
        packed = (folder / ARRAYS).read_bytes()
    except (UserError, OSError):
        return None
    matches = isinstance(found, dict) and found.get("identity") == identity
    return found if matches and found.get("arrays_sha256") == hashlib.sha256(packed).hexdigest() else None


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
