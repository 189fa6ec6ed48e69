"""Who may write into a run folder: the newest attempt, and nobody else.

    RUN/attempts/0001.json, 0002.json, …

Each start of a run is an attempt with the next number, and its file is created exclusively, so of two that want to take over one
does. Whoever is followed by another is *fenced*: before it writes, it lists the folder, finds a higher number, and stops. Nothing
is ever taken away from an attempt, so there is no moment at which two of them own a folder or nobody can tell who does.

A live attempt is not followed. Any of these proves that it has ended:

- it says so itself;
- it ran on this machine, and its file is no longer locked: the system drops the lock when a process dies, however it dies. On a
  shared file system locks may be known to the machine alone that holds them, so from elsewhere an open lock proves nothing;
- its Slurm job has left the queue, or waits in it to be started anew;
- it has not touched its file for `GONE_SECONDS`.

And a job that Slurm starts anew follows its own earlier attempt at once: if that one lives on, on a node which Slurm has given up,
it finds itself fenced.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import BinaryIO

from depthbench.files import publish, write_json
from depthbench.study.slurm_queue import MAX_AGE_SECONDS, JobRef, read_queue

FOLDER = "attempts"
BEAT_SECONDS = 15.0
GONE_SECONDS = 300.0


class Fenced(Exception):
    """Another attempt has taken the run over. Not a failure of the run: whoever has it now will end it."""


@dataclass(frozen=True)
class Owner:
    """What an attempt says of itself. `machine` tells kernels apart, also where hosts are called alike; `locked` says whether its
    file could be locked at all.
    """

    host: str
    machine: str
    pid: int
    started_at: str
    locked: bool = False
    job: JobRef | None = None
    ended_at: str = ""

    @staticmethod
    def here() -> Owner:
        """This process, now."""
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        return Owner(host, _machine(), os.getpid(), _now(), job=JobRef.here())

    def restarts(self, other: Owner) -> bool:
        """Whether this is the same Slurm job as `other`, started anew."""
        if self.job is None or other.job is None:
            return False
        return replace(self.job, restarts=0) == replace(other.job, restarts=0) and self.job.restarts > other.job.restarts


@dataclass
class Attempt:
    """The right of this process to write into `run`."""

    run: Path
    number: int
    owner: Owner
    file: BinaryIO

    @property
    def path(self) -> Path:
        """Its own file."""
        return _path(self.run, self.number)

    def is_current(self) -> bool:
        """Whether no other attempt has taken over."""
        return newest(self.run) == self.number

    def guard(self) -> None:
        """To be called before anything is written. Raises `Fenced` if another attempt has taken over."""
        guard(self.run, self.number)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Touch its file now and then, from a thread of its own: an update, a compilation or a validation may take minutes."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                with suppress(OSError):  # a file server that is away for a while
                    os.utime(self.file.fileno())

        thread = threading.Thread(target=beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def release(self) -> None:
        """Say that it has ended."""
        with suppress(OSError):  # on a full disk the open lock says it, or the queue, or time
            write_json(self.path, asdict(replace(self.owner, ended_at=_now())))
        self.file.close()


def claim(run: Path) -> Attempt | None:
    """Become the newest attempt at `run`, or get None if a live one has it."""
    (run / FOLDER).mkdir(exist_ok=True)
    me = Owner.here()
    while True:
        number = newest(run)
        if number:
            owner = read_owner(run, number)
            follows = owner is not None and me.restarts(owner)
            if not follows and not has_ended(run, number, owner, now=lambda: _server_time(run)):
                return None
        attempt = _create(run, number + 1, me)
        if attempt is not None:
            return attempt


def guard(run: Path, number: int) -> None:
    """Raise `Fenced` if an attempt newer than `number` has taken over `run`. Also for processes that the claiming one started."""
    found = newest(run)
    if found != number:
        raise Fenced(f"attempt {number} at {run.name} was followed by attempt {found}; it stops without writing")


def newest(run: Path) -> int:
    """The number of the newest attempt, 0 if there is none.

    The folder is listed, not asked for one name: on NFS a client may for a minute believe in a name's absence, but looks again at
    a folder that is opened.
    """
    try:
        names = os.listdir(run / FOLDER)
    except FileNotFoundError:
        return 0
    return max((int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()), default=0)


def read_owner(run: Path, number: int) -> Owner | None:
    """What the attempt says of itself, or None if that cannot be read."""
    try:
        content = json.loads(_path(run, number).read_bytes())
        job = content.pop("job")
        return Owner(**content, job=JobRef(**job) if job else None)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def has_ended(run: Path, number: int, owner: Owner | None, now: Callable[[], float] = time.time) -> bool:
    """Whether it is proven that the attempt has ended; see above."""
    path = _path(run, number)
    if owner is not None:
        if owner.ended_at:
            return True
        here = owner.machine == _machine() and owner.locked
        if here and not _is_locked(path):
            return True
        if owner.job and _has_left_the_queue(owner.job):
            return True
        if here:
            return False
    try:
        return now() - path.stat().st_mtime > GONE_SECONDS
    except FileNotFoundError:
        return True


def _has_left_the_queue(job: JobRef) -> bool:
    """Whether Slurm has no process of the job. What an older answer says is asked again: the job may have started since."""
    for max_age in (MAX_AGE_SECONDS, 0.0):
        queue = read_queue(max_age)
        if queue is None or not queue.covers(job) or queue.is_on_a_node(job.id):
            return False
    return True


def _create(run: Path, number: int, owner: Owner) -> Attempt | None:
    """Publish the attempt, its file locked before anybody can see it; None if another one has the number."""
    beside = run / FOLDER / f".{number}.{uuid.uuid4().hex}.part"
    file = open(beside, "xb")  # noqa: SIM115 (it is kept open, and with it the lock)
    try:
        owner = replace(owner, locked=_lock(file))
        file.write(json.dumps(asdict(owner), indent=2).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        if publish(beside, _path(run, number)):
            return Attempt(run, number, owner, file)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _path(run: Path, number: int) -> Path:
    return run / FOLDER / f"{number:04d}.json"


def _lock(file: BinaryIO) -> bool:
    """Lock a new file; False where the file system knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_locked(path: Path) -> bool:
    """Whether some process holds the lock. Two that look at once do not hinder each other, nor the owner, who had it first."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _server_time(run: Path) -> float:
    """The time by the clock that stamps files in `run`, which may be another than this machine's."""
    probe = run / FOLDER / f".clock.{uuid.uuid4().hex}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


@cache
def _machine() -> str:
    """This machine since its start. Hosts may share a name, in containers for instance."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
