"""Results of checkpoints lie in folders that are named after them, and names repeat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from depthbench.errors import UserError
from depthbench.files import read_json


def refuse_another(path: Path, source: str, weights: Callable[[], str]) -> None:
    """Raise `UserError` if the result at `path` is about something else than the checkpoint from `source` (see `source_of`):
    another run or checkpoint, with other weights than those whose hash `weights` gives.
    """
    other = None
    with suppress(UserError, KeyError, TypeError, AttributeError):  # what cannot be read is about nothing
        content = read_json(path)
        about = content["about"]
        name = about.get("source") or about.get("name") or about["run"]
        if name != source and content["identity"]["weights"] != weights():
            other = f"{'run' if about['kind'] == 'run' else 'checkpoint'}, {name}"
    if other:
        raise UserError(f"{path.parent} holds the result of another {other}; give --out with another folder, or delete it")
