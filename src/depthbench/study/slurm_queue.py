"""What Slurm says of one's jobs: one `squeue` for all of them, and nothing that needs accounting.

Slurm forgets a job some minutes after its end, and says nothing to whoever cannot reach it. So the queue answers one question
only, whether a job is still there; how a run stands is for its folder to say.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})  # no process of it runs
ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"})
ENDED |= {"PREEMPTED", "REVOKED", "TIMEOUT"}
MAX_AGE_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
FORMAT = {"JobArrayID": 40, "State": 24, "Name": 64, "Reason": 60}  # what is asked for, in columns of these widths


@dataclass(frozen=True)
class JobRef:
    """A job: `12_3` (element 3 of array 12) or `12`, and how often Slurm has started it anew."""

    cluster: str
    user: str
    id: str
    restarts: int = 0

    @staticmethod
    def here(environment: Mapping[str, str] = os.environ) -> JobRef | None:
        """The job that this process belongs to, or None outside of Slurm."""
        job = environment.get("SLURM_JOB_ID")
        if job is None:
            return None
        if "SLURM_ARRAY_JOB_ID" in environment:
            job = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
        restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
        return JobRef(environment.get("SLURM_CLUSTER_NAME", ""), user_name(), job, restarts)


@dataclass(frozen=True)
class Ticket:
    """What a run folder's `job.json` says: element `index` of the submission called `name` is to train the run. `job` is its id,
    empty while the submission is under way: a queue that knows the name then knows the job.
    """

    name: str
    index: int
    cluster: str
    user: str
    job: str = ""


@dataclass(frozen=True)
class QueuedJob:
    """One line of the queue."""

    state: str
    name: str
    reason: str


@dataclass(frozen=True)
class Queue:
    """The jobs of one user on one cluster, by id. Ended ones are among them for as long as Slurm remembers (minutes)."""

    cluster: str
    user: str
    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)

    def covers(self, job: JobRef | Ticket) -> bool:
        """Whether it would show this job: another user's, or one of another cluster, may be there and not be seen here."""
        return (job.cluster, job.user) == (self.cluster, self.user)

    def is_live(self, job: str) -> bool:
        """Whether the job waits, runs or is about to end."""
        return job in self.jobs and self.jobs[job].state not in ENDED

    def is_on_a_node(self, job: str) -> bool:
        """Whether processes of the job may run."""
        return self.is_live(job) and self.jobs[job].state not in WAITING

    def find(self, ticket: Ticket) -> str:
        """The id of the job of a ticket, live or ended; empty if Slurm does not know it (any more)."""
        known = [ticket.job] if ticket.job else self.jobs
        return next((job for job in known if job in self.jobs and self._is_of(job, ticket)), "")

    def _is_of(self, job: str, ticket: Ticket) -> bool:
        """An array of one is no array: its job has no index."""
        return self.jobs[job].name == ticket.name and job.partition("_")[2] in (str(ticket.index), "")


class _Last:
    """The newest answer, and when it was asked for."""

    queue: Queue | None = None
    at: float | None = None


def read_queue(max_age: float = MAX_AGE_SECONDS) -> Queue | None:
    """The queue as it was at most `max_age` seconds ago, or None where there is no Slurm or it does not answer."""
    now = time.monotonic()
    if _Last.at is None or now - _Last.at >= max_age:
        _Last.queue, _Last.at = _ask(), now
    return _Last.queue


def _ask() -> Queue | None:
    cluster, user = site().get("ClusterName", ""), user_name()
    columns = ",".join(f"{name}:{width}" for name, width in FORMAT.items())
    text = command("squeue", "--noheader", "--array", "--states=all", f"--user={user}", f"--Format={columns}")
    if not cluster or text is None:
        return None
    jobs = {}
    for line in text.splitlines():
        cells, start = [], 0
        for width in FORMAT.values():
            cells.append(line[start : start + width].strip())
            start += width
        jobs[cells[0]] = QueuedJob(*cells[1:])
    return Queue(cluster, user, jobs)


def site() -> Mapping[str, str]:
    """The settings of the site (`ClusterName`, `MaxArraySize`, …), asked for once; empty if it does not answer."""
    found = _site()
    if not found:
        _site.cache_clear()
    return found


@cache
def _site() -> Mapping[str, str]:
    lines = (command("scontrol", "show", "config") or "").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def command(name: str, *arguments: str) -> str | None:
    """What a Slurm command prints, or None if it is not there, fails or does not answer."""
    if shutil.which(name) is None:
        return None
    # a user's own habits for squeue, such as a filter, are not wanted here
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SQUEUE_")}
    try:
        done = subprocess.run([name, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def user_name() -> str:
    """Who runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
