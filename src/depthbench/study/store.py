"""Run folders, the only database: `cell.json`, `environment.json`, `metrics.jsonl`, `checkpoint/`, and `result.json` written last.

    OUT/cells/hc-6x96-lr0.002-s0-1a2b3c4d5e/

`attempts/` says who may write (attempt.py), `job.json` which Slurm job was submitted for the run. Status, resume and reports read
folders and nothing else but the queue of live jobs, so copying folders between machines merges studies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import METRICS_FILE, read_json, write_bytes, write_json
from depthbench.study.attempt import Attempt, Owner, claim, has_ended, newest, read_owner
from depthbench.study.cell import Cell, cell_from
from depthbench.study.slurm_queue import Ticket, read_queue

RESULT_FORMAT = 1


@dataclass(frozen=True)
class RunState:
    """How a run stands: "waiting", "queued" (a Slurm job has yet to start), "running", "done", "diverged", "failed" or "unreadable"
    (its result is). `row` is the newest metrics row, `note` the error of a failed run or the job of a queued one, `owner` who
    trains a running one.
    """

    status: str
    row: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    owner: Owner | None = None

    @property
    def step(self) -> int:
        """Updates so far."""
        return int(self.row.get("step", 0))


@dataclass(frozen=True)
class RunFolder:
    """The folder of one cell."""

    path: Path

    @property
    def result_path(self) -> Path:
        """Its presence means that the run has ended."""
        return self.path / "result.json"

    @property
    def failure_path(self) -> Path:
        """The last error of a run that failed; removed when it is tried again."""
        return self.path / "failure.json"

    @property
    def ticket_path(self) -> Path:
        """The Slurm job that was submitted for it last."""
        return self.path / "job.json"

    @property
    def design_path(self) -> Path:
        """The copy of a user's design file."""
        return self.path / "design.py"

    def cell(self) -> Cell:
        """The cell it holds. Raises `UserError` if that cannot be read."""
        path = self.path / "cell.json"
        return cell_from(read_json(path), str(path))

    def result(self) -> dict[str, Any] | None:
        """The result, or None while there is none. Raises `UserError` if it cannot be read or is of a newer format."""
        if not self.result_path.exists():
            return None
        result = read_json(self.result_path)
        if isinstance(result, dict) and isinstance(result.get("format"), int) and result["format"] > RESULT_FORMAT:
            raise UserError(f"{self.result_path} was written by a newer DepthBench; upgrade to read it")
        if not is_result(result):
            raise UserError(f"{self.result_path} is not a result; delete it to train the cell again")
        found: dict[str, Any] = result
        return found

    def create(self, cell: Cell) -> None:
        """Make the folder and write the cell, or check that the one there is the same."""
        path = self.path / "cell.json"
        if path.exists():
            if self.cell().identity != cell.identity:
                raise UserError(f"{self.path} holds another cell than {cell.name}; move it away")
            return
        self.path.mkdir(parents=True, exist_ok=True)
        if cell.design.class_name:  # the run keeps the design it was planned with, whatever becomes of the user's file
            from depthbench.residual.registry import source_of  # here, so that reading folders needs no torch

            write_bytes(self.design_path, source_of(cell.design.name))
        try:
            write_json(path, cell.content())
        except FileNotFoundError:  # another process has made the folder at the same time, and holds it by now
            if not path.exists():
                raise

    def design_name(self, cell: Cell) -> str:
        """What to build: the design's name, or for a user's file the copy of it in this folder.

        Raises `UserError` when the copy, or an installed design, is not the one that the cell was planned with.
        """
        from depthbench.residual.registry import source_of

        name = f"{self.design_path}:{cell.design.class_name}" if cell.design.class_name else cell.design.name
        source = source_of(name)
        if (hashlib.sha256(source).hexdigest() if source else "") != cell.design_hash:
            raise UserError(
                f"design {cell.design} has changed since {self.path.name} was planned; run the study again for new cells"
            )
        return name

    @contextmanager
    def claimed(self) -> Iterator[Attempt | None]:
        """Hold the folder for this process, as a new attempt; gives None if a live one has it."""
        attempt = claim(self.path)
        if attempt is None:
            yield None
            return
        try:
            with attempt.beating():
                self._remove_leftovers()
                yield attempt
        finally:
            attempt.release()

    def _remove_leftovers(self) -> None:
        """Remove what processes that were killed while they wrote have left. A ticket may be on its way in just now."""
        for left in self.path.glob(".*.part"):
            if not left.name.startswith(f".{self.ticket_path.name}"):
                left.unlink(missing_ok=True)

    def owner(self) -> Owner | None:
        """Who holds the folder now, or None."""
        number = newest(self.path)
        owner = read_owner(self.path, number)
        if not number or has_ended(self.path, number, owner):
            return None
        return owner or Owner("?", "", 0, "")

    def is_claimed(self) -> bool:
        """Whether somebody holds the folder now."""
        return self.owner() is not None

    def ticket(self) -> Ticket | None:
        """The Slurm job that was submitted for it last, or None."""
        try:
            return Ticket(**read_json(self.ticket_path))
        except (UserError, TypeError):
            return None

    def write_ticket(self, ticket: Ticket) -> None:
        """Note the Slurm job that is submitted for it."""
        write_json(self.ticket_path, asdict(ticket))

    def last_row(self) -> dict[str, Any]:
        """The newest complete metrics row, or an empty one."""
        path = self.path / METRICS_FILE
        if not path.exists():
            return {}
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().split(b"\n")[:-1]
        try:
            row: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        except ValueError:
            return {}
        return row

    def state(self) -> RunState:
        """How the run stands, from the folder; whether a Slurm job is still there, from the queue if there is one."""
        row = self.last_row()
        try:
            result = self.result()
        except UserError as error:
            return RunState("unreadable", row, str(error))
        if result is not None:
            return RunState(result["status"], row, f"at step {result['steps']}" if result["status"] == "diverged" else "")
        owner = self.owner()
        if owner is not None:
            return RunState("running", row, owner=owner)
        if self.failure_path.exists():
            return RunState("failed", row, self._failure())
        job = self._queued_job()
        return RunState("queued", row, job) if job else RunState("waiting", row)

    def _failure(self) -> str:
        try:
            return str(read_json(self.failure_path).get("error", ""))
        except (UserError, AttributeError):
            return f"{self.failure_path} cannot be read"

    def _queued_job(self) -> str:
        """The job that is to train the run, and why it waits; empty if there is none. What no queue can show is believed."""
        ticket = self.ticket()
        if ticket is None:
            return ""
        queue = read_queue()
        if queue is None or not queue.covers(ticket):
            return f"job {ticket.job}" if ticket.job else ""
        job = queue.find(ticket)
        if not queue.is_live(job):
            return ""
        return f"job {job}, {'starting' if queue.is_on_a_node(job) else queue.jobs[job].reason}"


def is_result(content: Any) -> bool:
    """Whether `content` has what readers of a result rely on."""
    if not isinstance(content, dict) or not isinstance(content.get("steps"), int):
        return False
    loss = content.get("loss")
    return content.get("status") == "diverged" or (content.get("status") == "done" and isinstance(loss, float))


def run_folder(out: Path, cell: Cell) -> RunFolder:
    """Where the run of `cell` lies under `out`."""
    return RunFolder(out / "cells" / cell.name)


def find_runs(out: Path) -> list[RunFolder]:
    """All run folders under `out`, by name. Raises `UserError` if `out` is not a folder of runs."""
    if not out.is_dir():
        raise UserError(f"{out} is not a folder; give the --out of a run")
    runs = out / "cells"
    if not runs.is_dir():
        raise UserError(f"{out} holds no runs (there is no {runs}); give the --out of a run")
    return [RunFolder(path) for path in sorted(runs.iterdir()) if path.is_dir() and not path.name.startswith(".")]
