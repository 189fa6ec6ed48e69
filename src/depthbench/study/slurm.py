"""Running a study on a cluster: cells as elements of Slurm job arrays, followed through their folders.

    OUT/slurm/NAME/    what submitit writes for one submission: job scripts and the output of its jobs

A job trains the run in its folder exactly as a local worker does, so both may share a study. How a run stands is read from its
folder, and from `squeue` only whether its job is still there: sites without accounting know no more, and where there is accounting
it is not needed. A job that is gone without a result is a lost attempt, and the run is submitted again. If that happens by
mistake, because two runners follow one study or Slurm answers late, the second attempt finds the run claimed and ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import re
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from depthbench.errors import UserError
from depthbench.files import make_folder
from depthbench.study.backlog import Backlog
from depthbench.study.cell import Cell
from depthbench.study.slurm_job import TrainInJob
from depthbench.study.slurm_options import SlurmOptions
from depthbench.study.slurm_queue import Queue, Ticket, read_queue, site, user_name
from depthbench.study.store import RunFolder, RunState, run_folder
from depthbench.study.watch import ELSEWHERE, FINISHED, Ended, Report, Running, Watcher
from depthbench.study.work import Work
from depthbench.train.execution import Execution

FOLDER = "slurm"
POLL_SECONDS = 5.0
SILENCE_SECONDS = 300.0  # how long Slurm may not answer until that is worth a word
REFUSED_SECONDS = 30.0  # how long after a refusal the site is not asked again
LOST_LIMIT = 3  # attempts in a row that vanish without a single further update
SIGNAL_SECONDS = 90  # how long before the time limit a run is asked to save
MAX_ARRAY = 1001  # Slurm's own default of MaxArraySize


class SlurmRunner:
    """Trains what `work` asks for in `out`, each cell in a job of its own. Returns from `run` when all have ended, or after Ctrl-C,
    which leaves the jobs alone: another call picks them up.

    Raises `UserError` if submitit or Slurm is not there, or if the site refuses the jobs and none is left to wait for.
    """

    def __init__(
        self, work: Work, data: Path, out: Path, *, options: SlurmOptions, execution: Execution, watcher: Watcher | None = None
    ) -> None:
        self.data, self.out = data.absolute(), out.absolute()  # jobs start in a folder of their own
        self.options, self.execution = options, execution
        self.watcher = watcher or Watcher()
        self.report = Report()
        self.backlog = Backlog(work, self.out, self.report)
        self.todo: dict[Cell, _Course] = {}
        self.stopping = False
        self.refused, self.submit_after = "", 0.0
        self.heard = time.monotonic()

    def run(self) -> Report:
        """Submit and follow until everything that is asked for has ended."""
        check_available()
        asked, todo = self._expand()
        self.watcher.begin(asked, todo, f"submitting to {self._where()}")
        with self._signals():
            try:
                while self.todo and not self.stopping:
                    self._turn()
                    self._wait()
            finally:
                self.watcher.close()
        self.report.interrupted = self.stopping
        if self.stopping:
            self._say_what_goes_on()
        return self.report

    def _where(self) -> str:
        return f"Slurm, partition {self.options.partition}" if self.options.partition else "Slurm, the site's own partition"

    def _expand(self) -> tuple[list[Cell], list[Cell]]:
        fresh, todo = self.backlog.expand()
        self.todo |= {cell: _Course(run_folder(self.out, cell)) for cell in todo}
        return fresh, todo

    def _turn(self) -> None:
        """See how every run stands, take up what follows from results, and submit what no job is to train."""
        queue = read_queue(max_age=0.0)
        if queue is None:
            self._warn_of_silence()
            return
        self.heard = time.monotonic()
        running, homeless = [], []
        for cell, course in list(self.todo.items()):
            state = course.look(queue)
            if state.status in FINISHED:
                self._end(cell, state.status if course.followed else ELSEWHERE)
            elif state.status == "running":
                running.append(Running(cell, state.step, state.row.get("loss"), state.row.get("tokens_per_second", 0.0)))
            elif state.status in ("failed", "unreadable") and course.followed:
                self._end(cell, "failed", state.note)
            elif state.status != "queued":
                homeless.append(cell)
        fresh, todo = self._expand()
        if fresh:
            self.watcher.more(fresh, todo)
            homeless += todo
        self._submit_all([cell for cell in homeless if self._is_worth_another(cell)])
        self.watcher.tick(running, self.report, len(self.todo) - len(running))

    def _end(self, cell: Cell, status: str, error: str = "") -> None:
        course = self.todo.pop(cell)
        item = Ended(cell, status, error, time.monotonic() - course.began)
        if status == ELSEWHERE:
            self.report.already_done += 1
        else:
            self.report.ended.append(item)
        self.watcher.ended(item)
        if status in (*FINISHED, ELSEWHERE):
            self.backlog.record(cell)

    def _is_worth_another(self, cell: Cell) -> bool:
        """Whether to submit a run (again): not after it was lost several times at the same update."""
        course = self.todo[cell]
        if not course.is_lost():
            return True
        if course.lost < LOST_LIMIT:
            self.watcher.note(cell, f"job {course.ticket.job} has gone without a result; submitting the run again")
            return True
        last = f": {words}" if (words := self._last_words(course.ticket)) else ""
        self._end(cell, "failed", f"job {course.ticket.job} and {LOST_LIMIT - 1} before it went without a result or progress{last}")
        return False

    def _last_words(self, ticket: Ticket) -> str:
        """The last line that the job wrote to stderr."""
        for path in (self.out / FOLDER / ticket.name).glob(f"{ticket.job}_*.err"):
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            if words := [line.strip() for line in lines if line.strip()]:
                return words[-1]
        return ""

    def _submit_all(self, cells: Sequence[Cell]) -> None:
        """Submit in arrays as large as the site allows. A refusal is final only if no job is left to wait for."""
        if time.monotonic() < self.submit_after:
            return
        try:
            size = self._array_size()
            for start in range(0, len(cells), size):
                self._submit(cells[start : start + size])
            self.refused = ""
        except _Refused as error:
            if not any(course.followed for course in self.todo.values()):
                raise UserError(f"Slurm refused the jobs: {error}; mend --slurm and run the same command") from error
            self.submit_after = time.monotonic() + REFUSED_SECONDS
            if str(error) != self.refused:
                self.refused = str(error)
                self.watcher.tell(f"Slurm takes no more jobs for now: {error}; trying again as others end")

    def _array_size(self) -> int:
        allowed = site().get("MaxArraySize", "")
        limit = max(1, int(allowed) if allowed.isdigit() else MAX_ARRAY)
        return min(self.options.max_array or limit, limit)

    def _submit(self, cells: Sequence[Cell]) -> None:
        """One submission. The runs say so before it is made, so that a kill in between leaves no job that nobody knows of."""
        name = f"depthbench-{re.sub('[^A-Za-z0-9_-]', '-', self.out.name)[:20]}-{uuid.uuid4().hex[:8]}"
        tickets = [Ticket(name, i, site().get("ClusterName", ""), user_name()) for i in range(len(cells))]
        for cell, ticket in zip(cells, tickets, strict=True):
            self.todo[cell].folder.failure_path.unlink(missing_ok=True)  # of an earlier job: this one is judged by its own
            self.todo[cell].note(ticket)
        try:
            with self._one_at_a_time():
                ids = submit(
                    self.out / FOLDER / name, name, self.options, self.execution, [self._arguments(cell) for cell in cells]
                )
        except BaseException:
            for cell in cells:
                self.todo[cell].withdraw()
            raise
        for cell, ticket, job in zip(cells, tickets, ids, strict=True):
            self.todo[cell].note(replace(ticket, job=job))
        self.watcher.tell(f"submitted job {ids[0].partition('_')[0]}: {len(cells)} cell{'s' * (len(cells) != 1)}")

    def _arguments(self, cell: Cell) -> tuple[str, str, dict[str, Any]]:
        return str(run_folder(self.out, cell).path), str(self.data), asdict(self.execution)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Two runners of one study submit in turns, where the file system knows locks."""
        with open(make_folder(self.out / FOLDER) / ".lock", "wb") as file:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _warn_of_silence(self) -> None:
        if time.monotonic() - self.heard >= SILENCE_SECONDS:
            self.heard = time.monotonic()
            self.watcher.tell("squeue does not answer; waiting, the jobs go on without it")

    def _say_what_goes_on(self) -> None:
        jobs = sorted({course.ticket.job.partition("_")[0] for course in self.todo.values() if course.ticket.job})
        if jobs:
            self.watcher.tell(f"the jobs go on, and the same command follows them; to end them: scancel {' '.join(jobs)}")

    def _wait(self) -> None:
        until = time.monotonic() + POLL_SECONDS
        while self.todo and not self.stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM ends the following, not the jobs; a second Ctrl-C ends at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stopping = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Course:
    """One run as this runner sees it: the job that is to train it, and how far lost ones have brought it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.ticket = folder.ticket() or Ticket("", 0, "", "")
        self.followed = False  # whether it has a job that this runner submitted or saw: an older failure is not of that job
        self.began = time.monotonic()
        self.step = self.lost = 0
        self.lost_at = -1

    def look(self, queue: Queue) -> RunState:
        """How the run stands. "waiting" means that no job is there which would train it."""
        there = self._is_queued(queue)  # asked first: a job that has gone since has left its result
        state = self.folder.state()
        if there:
            self.followed = True
            if state.status in ("waiting", "failed"):  # a failure of an earlier job
                return replace(state, status="queued")
        elif state.status == "queued":  # by an older answer of squeue, or another user's word
            state = replace(state, status="waiting")
        self.step = state.step
        return state

    def _is_queued(self, queue: Queue) -> bool:
        job = queue.find(self.ticket) if self.ticket.name and queue.covers(self.ticket) else ""
        return queue.is_live(job)

    def is_lost(self) -> bool:
        """Count a job that has gone without a result, from the start again if the run has come further. False if it had none."""
        if not self.followed:
            return False
        self.lost, self.lost_at = (self.lost + 1 if self.step <= self.lost_at else 1), self.step
        self.followed = False
        return True

    def note(self, ticket: Ticket) -> None:
        """A job is submitted, or about to be."""
        self.folder.write_ticket(ticket)
        self.ticket, self.followed = ticket, True

    def withdraw(self) -> None:
        """It was not."""
        self.folder.ticket_path.unlink(missing_ok=True)
        self.ticket, self.followed = Ticket("", 0, "", ""), False


class _Refused(Exception):
    """The site does not take the jobs; its own words."""


def check_available() -> None:
    """Raise `UserError` unless submitit and Slurm are there."""
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise UserError("--slurm needs submitit; install it with: pip install 'depthbench[slurm]'") from error
    for command in ("sbatch", "srun", "squeue"):
        if shutil.which(command) is None:
            raise UserError(f"--slurm: there is no {command} here; run this on a machine from which jobs are submitted")
    if read_queue(max_age=0.0) is None:
        raise UserError("--slurm: squeue does not answer; is Slurm up, and does `squeue` work here?")


def submit(
    folder: Path, name: str, options: SlurmOptions, execution: Execution, arguments: Sequence[tuple[str, str, dict[str, Any]]]
) -> list[str]:
    """Submit one array (or, for one cell, one job) called `name`. Returns the job ids in order.

    Raises `_Refused` with Slurm's words.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.SlurmExecutor(folder=make_folder(folder))
    executor.update_parameters(**sbatch_parameters(name, options, execution))
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), executor.batch():  # submitit prints there what it raises
            jobs = [executor.submit(TrainInJob(), *words) for words in arguments]
    except (FailedJobError, FailedSubmissionError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _Refused(_site_words(str(error) or said.getvalue())) from error
    return [job.job_id for job in jobs]


def sbatch_parameters(name: str, options: SlurmOptions, execution: Execution) -> dict[str, Any]:
    """What submitit is to write into the job script. One task a node: it starts the processes of its node itself."""
    cpus = options.cpus or execution.threads * max(1, execution.processes // options.nodes)
    wanted: dict[str, Any] = {
        "job_name": name,
        "time": options.time,
        "nodes": options.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": cpus,
        "array_parallelism": options.array_parallelism,
        "signal_delay_s": SIGNAL_SECONDS,
        "srun_args": [f"--cpus-per-task={cpus}"],  # since Slurm 22.05 a step does not have it from its job
        "additional_parameters": {"requeue": True, **dict(options.extra)},
        "setup": [part.strip() for part in options.setup.split(";")] if options.setup else None,
        "gpus_per_node": options.gpus or None,
        "wckey": options.wckey or None,
    }
    wanted |= {key: getattr(options, key) or None for key in ("partition", "mem", "account", "qos", "constraint", "exclude")}
    return wanted


def _site_words(text: str) -> str:
    """Slurm's message in one line, without the name of the command that said it."""
    lines = [re.sub(r"^(sbatch|srun): (error: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line) or "it gave no reason"
