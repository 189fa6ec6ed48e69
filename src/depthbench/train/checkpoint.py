"""Checkpoints that survive a kill at any moment: written beside, then renamed; the one before is kept as a fall-back.

A checkpoint is one safetensors file, `step-0000000500.safetensors`, whose metadata holds the run's identity, what the loop needs to
go on exactly where it was, and a checksum of the tensors. The metadata has a checksum of its own, so that a flipped bit in it is
never taken for another cell or a newer format.
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
UNUSABLE = ".unusable"
TAIL_BYTES = 1 << 16  # more than the longest metrics row
_CONTENT_KEY, _CONTENT_CRC_KEY = "depthbench", "depthbench_crc32"


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


def unguarded() -> None:
    """Nobody else writes."""


def save_checkpoint(
    folder: Path,
    identity: str,
    position: Position,
    tensors: Mapping[str, torch.Tensor],
    guard: Callable[[], None] = unguarded,
) -> None:
    """Write the checkpoint of `position`, then drop all but the newest two.

    `guard` is called before anything in the folder changes, and again before the new one takes its place, since writing a large one
    takes a while; what it raises leaves the others as they were.

    Raises:
        UserError: it cannot be written (no space, no permission). The old ones stay as they were.
    """
    guard()
    on_cpu = _unshared(tensors)
    content = {"format": FORMAT, "identity": identity, "crc32": _checksum(on_cpu), **asdict(position)}
    path = checkpoint_path(folder, position.step)
    try:
        folder.mkdir(exist_ok=True)
        for pattern in (".*.part", ".tmp*"):  # of a killed attempt, ours and safetensors' own: first, to have their space
            for left in folder.glob(pattern):
                left.unlink()
        _write(path, on_cpu, canonical_json(content), guard)
        for old in checkpoints(folder)[KEEP:]:
            old.unlink()
    except (OSError, SafetensorError) as error:  # safetensors has its own error for a full disk
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot save {path}: {reason}; mend that and continue from the checkpoint before it") from error


def _write(path: Path, tensors: Mapping[str, torch.Tensor], content: str, guard: Callable[[], None]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(dict(tensors), beside, metadata={_CONTENT_KEY: content, _CONTENT_CRC_KEY: str(zlib.crc32(content.encode()))})
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        guard()
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, each with memory of its own: a design may use one parameter under two names."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        on_cpu = tensor.detach().to("cpu").contiguous()
        memory = on_cpu.untyped_storage().data_ptr()
        found[name] = on_cpu.clone() if memory in seen else on_cpu
        seen.add(memory)
    return found


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:010d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def set_aside(folder: Path, after: int) -> None:
    """Rename the checkpoints of steps beyond `after`, which `load_checkpoint` passed over; new ones take their place."""
    for path in checkpoints(folder):
        if path.name > f"step-{after:010d}.safetensors":
            path.rename(path.with_name(path.name + UNUSABLE))


def load_checkpoint(
    folder: Path, identity: str, notify: Callable[[str], None], metrics: Path | None = None
) -> tuple[Position, dict[str, torch.Tensor]] | None:
    """The newest checkpoint that can be read, or None. A damaged one is passed over with a word to `notify`, and so is one that
    counts on other rows than the file `metrics` begins with.

    Raises:
        UserError: a checkpoint belongs to another cell, or was written by a newer version.
    """
    for path in checkpoints(folder):
        try:
            position, tensors = read_checkpoint(path, identity)
            if metrics is not None:
                check_metrics(metrics, position)
            return position, tensors
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            notify(f"checkpoint {path} is damaged ({error}); going back to the one before it")
    return None


def check_metrics(path: Path, position: Position) -> None:
    """Raise ValueError unless the first `position.metrics_bytes` bytes of the file end with the whole row of `position.step`."""
    end = position.metrics_bytes
    have = path.stat().st_size if path.exists() else 0
    if end > have:
        raise ValueError(f"its metrics end at byte {end}, and only {have} are there")
    if position.step == 0:
        return
    with open(path, "rb") as file:
        file.seek(max(0, end - TAIL_BYTES))
        *_, last, rest = (b"\n" + file.read(min(end, TAIL_BYTES))).split(b"\n")
    try:
        step = None if rest else json.loads(last)["step"]
    except (ValueError, KeyError, TypeError):
        step = None
    if step != position.step:
        raise ValueError(f"the metrics before byte {end} do not end with the row of step {position.step}")


def read_checkpoint(path: Path, identity: str) -> tuple[Position, dict[str, torch.Tensor]]:
    """Position and tensors of one checkpoint. Raises ValueError, KeyError, OSError or SafetensorError when it is damaged."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        text = metadata[_CONTENT_KEY]
        if zlib.crc32(text.encode()) != int(metadata[_CONTENT_CRC_KEY]):
            raise ValueError("the checksum of its metadata does not match")
        content = json.loads(text)
        if content.pop("format") > FORMAT:
            raise UserError(f"checkpoint {path} was written by a newer DepthBench; upgrade to read it")
        owner = content.pop("identity")
        if owner != identity:
            raise UserError(f"checkpoint {path} belongs to cell {owner[:12]}, not {identity[:12]}; move it out of this folder")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the handle is not a mapping)
    if _checksum(tensors) != content.pop("crc32"):
        raise ValueError("the checksum of its tensors does not match")
    return Position(**content), tensors


def _checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
