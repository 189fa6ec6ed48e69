"""Files of JSON rows, one a line, in a run folder: an attempt goes on where its checkpoint was taken."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def continue_rows(path: Path, keep: int, guard: Callable[[], None]) -> BinaryIO:
    """The file, cut back to its first `keep` bytes and open for more: no row is lost or written twice.

    It is a new file under the old name, so that an earlier attempt which lives on unnoticed writes into a file without a name.
    `guard` is called before anything in the folder changes.
    """
    guard()
    for left in path.parent.glob(f".{path.name}.*.part"):  # of an attempt that was killed right here
        left.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    file = open(beside, "xb")  # noqa: SIM115 (the caller closes it)
    try:
        if keep:
            with open(path, "rb") as before:
                file.write(before.read(keep))
        file.flush()
        os.fsync(file.fileno())
        guard()
        os.replace(beside, path)
    except BaseException:
        file.close()
        beside.unlink(missing_ok=True)
        raise
    return file


def write_row(file: BinaryIO, row: dict[str, Any]) -> None:
    """Append a row, whole or not at all as far as a kill of this process goes."""
    file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
    file.flush()


def bytes_up_to(path: Path, step: int) -> int:
    """The length of the whole rows that a file begins with and whose `step` is at most the given one."""
    length = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                try:
                    if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                        break
                except (ValueError, KeyError, TypeError):
                    break
                length += len(line)
    return length


def sync(path: Path) -> None:
    """Have the rows of a file, if it is there, on the disk."""
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
