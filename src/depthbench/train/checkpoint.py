"""Checkpoints that survive a kill at any moment: written beside, then renamed; the one before is kept as a fall-back.

A checkpoint is one safetensors file, `step-0000000500.safetensors`, whose metadata holds the run's identity, what the loop needs to
go on exactly where it was, and a checksum of every tensor's bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from depthbench.errors import UserError
from depthbench.files import canonical_json

FORMAT = 1
KEEP = 2
_METADATA_KEY = "depthbench"


@dataclass
class Position:
    """Where a run stands after `step` updates: what the loop carries besides tensors.

    `minimum` is the lowest loss so far (None before the first), `high_steps` how long the loss has been above it by the margin,
    `metrics_bytes` the length of `metrics.jsonl`, `seconds` the training time so far over all attempts.
    """

    step: int = 0
    minimum: float | None = None
    high_steps: int = 0
    metrics_bytes: int = 0
    seconds: float = 0.0


def save_checkpoint(folder: Path, identity: str, position: Position, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the checkpoint of `position`, then drop all but the newest two. A failed write leaves the old ones untouched."""
    folder.mkdir(exist_ok=True)
    on_cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    content = {"format": FORMAT, "identity": identity, "crc32": _checksum(on_cpu), **asdict(position)}
    path = folder / f"step-{position.step:010d}.safetensors"
    beside = folder / f".{path.name}.{os.getpid()}.part"
    try:
        save_file(on_cpu, beside, metadata={_METADATA_KEY: canonical_json(content)})
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    for old in checkpoints(folder)[KEEP:]:
        old.unlink()
    for part in folder.glob(".*.part"):  # left by a killed attempt
        part.unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def load_checkpoint(
    folder: Path, identity: str, notify: Callable[[str], None], metrics_bytes: int | None = None
) -> tuple[Position, dict[str, torch.Tensor]] | None:
    """The newest checkpoint that can be read, or None. A damaged one is passed over with a word to `notify`, and so is one that
    counts on more metrics than the `metrics_bytes` there are.

    Raises:
        UserError: a checkpoint belongs to another cell, or was written by a newer version.
    """
    for path in checkpoints(folder):
        try:
            position, tensors = read_checkpoint(path, identity)
            if metrics_bytes is not None and position.metrics_bytes > metrics_bytes:
                raise ValueError(f"its metrics end at byte {position.metrics_bytes}, and only {metrics_bytes} are there")
            return position, tensors
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            notify(f"checkpoint {path} is damaged ({error}); going back to the one before it")
    return None


def read_checkpoint(path: Path, identity: str) -> tuple[Position, dict[str, torch.Tensor]]:
    """Position and tensors of one checkpoint. Raises ValueError, KeyError, OSError or SafetensorError when it is damaged."""
    with safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()[_METADATA_KEY])
        if content.pop("format") > FORMAT:
            raise UserError(f"checkpoint {path} was written by a newer DepthBench; upgrade to read it")
        owner = content.pop("identity")
        if owner != identity:
            raise UserError(f"checkpoint {path} belongs to cell {owner[:12]}, not {identity[:12]}; move it out of this folder")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not a mapping)
    if _checksum(tensors) != content.pop("crc32"):
        raise ValueError("its checksum does not match")
    return Position(**content), tensors


def _checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
