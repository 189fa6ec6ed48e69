"""Writing files so that a kill at any moment leaves the old file or the new one, never half of either."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from depthbench.errors import UserError

METRICS_FILE = "metrics.jsonl"  # one row an update, in the folder of a run
LAYERS_FILE = "layers.jsonl"  # beside it: what the layers of the model put out, every so many updates
DIAGNOSIS_FILE, DIAGNOSIS_FORMAT = "diagnosis.json", 1  # what `depthbench diagnose` found, in the same place
EVALUATION_FILE, EVALUATION_FORMAT = "evaluation.json", 1  # and what `depthbench eval` found
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_with(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside `path`, flush to disk, then replace `path` in one step. On failure nothing at `path` changes."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Atomically write `content` to `path`."""
    write_with(path, lambda file: void(file.write(content)))


def write_text(path: Path, content: str) -> None:
    """Atomically write `content` as UTF-8 to `path`."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Atomically write `content` as indented JSON; non-finite numbers are refused, since JSON has none."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def create_json(path: Path, content: Any) -> bool:
    """Write JSON to `path` unless there is a file already, whole or not at all. Returns whether it was written."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    write_json(beside, content)
    return publish(beside, path)


def publish(beside: Path, path: Path) -> bool:
    """Give the finished file `beside` the name `path` unless that is taken. Returns whether it was free; `beside` is gone after it.

    A hard link to a taken name is refused, on a shared file system by its server, so of any number of writers on any machines one
    gets the name. Where a file system knows no hard links, a look before a rename is the best there is.
    """
    try:
        os.link(beside, path)
        return True
    except FileExistsError:
        return beside.stat().st_nlink > 1  # NFS may have done it, lost its answer, and been refused when it asked again
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            return False
        os.replace(beside, path)
        return True
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises `UserError` naming the file if it is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore it or delete it") from error


def canonical_json(content: Any) -> str:
    """One text for one content: sorted keys, no spaces, no non-finite numbers. The basis of content hashes."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(content: Any) -> str:
    """sha256 (hex) of the canonical JSON of `content`."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def make_folder(path: Path) -> Path:
    """Create `path` and its parents. Raises `UserError` if it cannot be created or written to."""
    if path.is_file():
        raise UserError(f"cannot write to {path}: it is a file; choose a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}; choose another folder") from error
    return path


def void(_: object) -> None:
    """Drop a value: for writers whose byte count nobody needs."""
