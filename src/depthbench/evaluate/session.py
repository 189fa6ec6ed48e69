"""An evaluation: tasks scored document by document, so that a kill loses one batch, and summed up beside the run.

In the folder, `evaluation/TASK.jsonl` has a line for each document, after one that says what was scored by what, and
`evaluation.json` the means. Documents that are there already, of the same weights, text and code, are not scored again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from depthbench import __version__
from depthbench.code_hash import evaluating_hash
from depthbench.errors import UserError
from depthbench.evaluate.estimates import of_groups, of_task
from depthbench.evaluate.likelihood import Score, Scored, score
from depthbench.evaluate.task_files import Task
from depthbench.files import EVALUATION_FILE, EVALUATION_FORMAT, content_hash, make_folder, read_json, write_json
from depthbench.progress import Progress
from depthbench.row_file import continue_rows, write_row

SCORES = "evaluation"  # the folder of the scores of documents


def evaluate(
    model: Scored,
    weights: str,
    tokenizer: str,
    precision: str,
    tasks: Sequence[Task],
    folder: Path,
    about: dict[str, Any],
    batch_size: int = 16,
) -> dict[str, Any]:
    """Score `tasks`, write the result into `folder` and return it; `weights` and `tokenizer` are hashes, `about` says what model it
    is.

    Tasks that an earlier evaluation of the same weights, tokenizer and code has, and this one does not, are kept.
    """
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}")
    identity = {"weights": weights, "tokenizer": tokenizer, "code": evaluating_hash(), "precision": precision}
    scores = make_folder(folder / SCORES)
    earlier = _earlier(folder, identity)
    found = dict(earlier["tasks"]) if earlier else {}
    sizes = [sum(len(item.prompt) + len(item.target) for item in task.documents) for task in tasks]
    with Progress(model.name, sum(sizes)) as progress:
        for at, task in enumerate(tasks):
            key = content_hash({**identity, "format": EVALUATION_FORMAT, "task": task.sha256})
            scored = _score(model, task, scores / f"{task.name}.jsonl", key, batch_size, progress, sum(sizes[:at]))
            found[task.name] = {
                "group": task.group,
                "version": task.version,
                "sha256": task.sha256,
                "source": task.source,
                "licence": task.licence,
                "template": asdict(task.template),
                **of_task(scored),
            }
            content = {
                "format": EVALUATION_FORMAT,
                "identity": identity,
                "about": about,
                "device": str(model.device),
                "versions": {"depthbench": __version__, "torch": torch.__version__, "python": platform.python_version()},
                "tasks": found,
                "groups": of_groups(found),
            }
            write_json(folder / EVALUATION_FILE, content)
    return content


def _score(model: Scored, task: Task, path: Path, key: str, batch_size: int, progress: Progress, before: int) -> list[Score]:
    """The scores of all documents, those from disk that an earlier attempt has put there; `before` characters are done."""
    kept, length = _kept(path, key)
    known = {number: kept[item.id] for number, item in enumerate(task.documents) if item.id in kept}
    todo = [number for number in range(len(task.documents)) if number not in known]
    size = [len(item.prompt) + len(item.target) for item in task.documents]
    done = before + sum(size[number] for number in known)
    with continue_rows(path, length, lambda: None) as file:
        if not length:
            write_row(file, {"key": key, "task": task.name, "sha256": task.sha256})
        for place, found in score([task.documents[number] for number in todo], model, batch_size):
            number = todo[place]
            write_row(file, {"id": task.documents[number].id, **asdict(found)})
            known[number] = found
            done += size[number]
            progress.update(done, task.name)
    progress.update(before + sum(size), task.name)
    return [known[number] for number in range(len(task.documents))]


def _kept(path: Path, key: str) -> tuple[dict[str, Score], int]:
    """The scores in a file by document, and how long its whole lines are; nothing if it is of another key."""
    found: dict[str, Score] = {}
    length = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                    if not line.endswith(b"\n") or (not length and row["key"] != key):
                        break
                    if length:
                        name = row.pop("id")
                        found[name] = Score(**row)
                except (ValueError, KeyError, TypeError, AttributeError):
                    break
                length += len(line)
    return found, length


def _earlier(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    with suppress(UserError):
        content = read_json(folder / EVALUATION_FILE)
        if isinstance(content, dict) and content.get("identity") == identity and content.get("format") == EVALUATION_FORMAT:
            return content
    return None
