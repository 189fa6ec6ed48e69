"""What `--slurm partition=gpu,time=8:00:00,gpus=1` means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from depthbench.errors import UserError, unknown

EXTRA = "sbatch."
LISTS = ("partition", "exclude", "constraint")  # whose values may hold commas
EXAMPLE = "partition=gpu,time=8:00:00,gpus=1"


@dataclass(frozen=True)
class SlurmOptions:
    """What a job asks the site for; what is empty or 0 is left to the site.

    `time` is in minutes (also written as `H:MM:SS` or `D-HH:MM`). `gpus` and `mem` are per node; `cpus` per node, 0 for the threads
    of its processes. `nodes` above 1 spreads one cell over several. `array_parallelism` is how many jobs of one array may run at
    once, `max_array` how many cells go into one array, 0 for as many as the site allows. `setup` is shell to run first, `;` between
    commands. `extra` holds further options of sbatch, given as `sbatch.reservation=night`.
    """

    partition: str = ""
    time: int = 60
    gpus: int = 0
    cpus: int = 0
    mem: str = ""
    nodes: int = 1
    account: str = ""
    qos: str = ""
    constraint: str = ""
    exclude: str = ""
    array_parallelism: int = 256
    max_array: int = 0
    wckey: str = ""
    setup: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, low in (("time", 1), ("nodes", 1), ("array_parallelism", 1), ("gpus", 0), ("cpus", 0), ("max_array", 0)):
            if getattr(self, name) < low:
                raise UserError(f"--slurm {name} must be at least {low}, got {getattr(self, name)}")

    @staticmethod
    def parse(text: str) -> SlurmOptions:
        """Read the text form. Raises `UserError` for an unknown key or a value that cannot be read."""
        kinds = {item.name: item.type for item in fields(SlurmOptions) if item.name != "extra"}
        found: dict[str, Any] = {}
        extra: dict[str, str] = {}
        for key, value in _pairs(text):
            if key in found or key in extra:
                raise UserError(f"--slurm gives {key} twice")
            if key.startswith(EXTRA) and len(key) > len(EXTRA):
                extra[key] = value
            elif key not in kinds:
                raise unknown("Slurm option", key, [*kinds, f"{EXTRA}NAME"])
            elif key == "time":
                found[key] = minutes(value)
            else:
                found[key] = _whole(key, value) if kinds[key] == "int" else value
        return SlurmOptions(**found, extra=tuple((key.removeprefix(EXTRA), value) for key, value in extra.items()))


def minutes(text: str) -> int:
    """Slurm's ways to write a time limit, in whole minutes, rounded up: `90`, `30:00`, `8:00:00`, `2-0`, `1-12:00`, `1-12:00:00`.

    Raises `UserError` for anything else.
    """
    match = re.fullmatch(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?)|(?:(?:(\d+):)?(\d+)(?::(\d+))?)", text)
    if match is None:
        raise UserError(f"--slurm time={text} cannot be read; give minutes, H:MM:SS or D-HH:MM")
    days, *parts = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        hours, minute, second = parts[:3]
    elif match[5] is not None and match[7] is None:
        hours, minute, second = 0, parts[3], parts[4]
    else:
        hours, minute, second = parts[3:]
    return days * 1440 + hours * 60 + minute + (second > 0)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`a=1,b=n[1,2],n4` as (a, 1) and (b, "n[1,2],n4"): commas in brackets, and in the values of lists, belong to the value."""
    key, value = "", ""
    for piece in re.split(r",(?![^\[]*\])", text):
        name, equals, rest = (part.strip() for part in piece.partition("="))
        if equals and name and rest:
            if key:
                yield key, value
            key, value = name, rest
        elif not equals and name and (key in LISTS or key.startswith(EXTRA)):
            value += f",{name}"
        else:
            raise UserError(f"--slurm: cannot read {piece.strip()!r}; write NAME=VALUE with commas between, such as {EXAMPLE}")
    yield key, value


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UserError(f"--slurm {key}={value}: {key} is a whole number") from None
