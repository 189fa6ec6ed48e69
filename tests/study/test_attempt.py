"""Who may write into a run folder: races, deaths, other machines, Slurm jobs that start anew, and writers that were given up."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from depthbench import ModelShape
from depthbench.study import attempt as attempts
from depthbench.study.attempt import GONE_SECONDS, Fenced, claim, has_ended, newest, read_owner
from depthbench.study.cell import Cell, DataPin, DesignChoice
from depthbench.study.slurm_queue import JobRef, Queue, QueuedJob
from depthbench.study.store import run_folder
from depthbench.study.train_cell import CLAIMED, train_cell
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe
from slurm_site import wait_for

HOLD = """
import sys
from pathlib import Path
from depthbench.study.store import RunFolder
with RunFolder(Path(sys.argv[1])).claimed() as mine:
    print(mine.number if mine else "claimed", flush=True)
    sys.stdin.read()
"""


def take(run):
    """Try to hold the folder, and let it go at once. The number of the attempt, or None."""
    attempt = claim(run)
    if attempt is None:
        return None
    attempt.release()
    return attempt.number


def become_job(monkeypatch, job="7_1", restarts=0):
    """From here on this process is a Slurm job."""
    array, _, index = job.partition("_")
    monkeypatch.setenv("SLURM_JOB_ID", "70")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", array)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", index)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "hill")


def rewrite(run, number, **changes):
    """Another history of an attempt: from another machine, for instance."""
    path = run / "attempts" / f"{number:04d}.json"
    path.write_text(json.dumps(asdict(replace(read_owner(run, number), **changes))))
    return path


def queue_says(monkeypatch, **states):
    """What squeue answers, with `job_7_1="RUNNING"` for job 7_1; None as the only state for a squeue that does not answer."""
    user = attempts.JobRef.here({"SLURM_JOB_ID": "1"}).user
    jobs = {name.removeprefix("job_"): QueuedJob(state, "study", "None") for name, state in states.items()}
    monkeypatch.setattr(attempts, "read_queue", lambda max_age: Queue("hill", user, jobs))


def test_a_held_folder_is_not_followed_and_a_released_one_is(tmp_path):
    first = claim(tmp_path)
    assert first.number == 1 and first.is_current() and first.owner.pid == os.getpid()
    assert claim(tmp_path) is None
    first.release()
    assert read_owner(tmp_path, 1).ended_at
    second = claim(tmp_path)
    assert second.number == 2
    second.guard()
    with pytest.raises(Fenced, match=r"attempt 1 at .* followed by attempt 2"):
        first.guard()
    second.release()


def test_of_many_that_claim_at_once_one_gets_the_folder(tmp_path):
    contestants = 6
    for turn in range(20):
        start, got = threading.Barrier(contestants), []

        def contest(start=start, got=got):
            start.wait()
            got.append(claim(tmp_path))

        threads = [threading.Thread(target=contest) for _ in range(contestants)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [attempt for attempt in got if attempt is not None]
        assert winner.number == turn + 1 and winner.is_current()
        winner.release()
    assert not [name for name in os.listdir(tmp_path / "attempts") if name.startswith(".")]  # nothing is left lying about


def test_a_process_that_dies_frees_its_folder_at_once(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "1\n"
        assert claim(tmp_path) is None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        mine = claim(tmp_path)
    assert mine.number == 2 and not read_owner(tmp_path, 1).ended_at
    mine.release()


def test_another_machine_holds_a_folder_for_as_long_as_it_beats(tmp_path):
    take(tmp_path)
    path = rewrite(tmp_path, 1, machine="another", ended_at="")  # its lock says nothing here
    assert claim(tmp_path) is None
    then = time.time() - GONE_SECONDS + 60
    os.utime(path, (then, then))
    assert claim(tmp_path) is None
    then -= 120
    os.utime(path, (then, then))
    assert take(tmp_path) == 2


def test_where_files_cannot_be_locked_the_heart_beat_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "_lock", lambda file: False)
    first = claim(tmp_path)
    assert not first.owner.locked and claim(tmp_path) is None
    os.utime(first.path, (1, 1))
    assert take(tmp_path) == 2
    with pytest.raises(Fenced):
        first.guard()
    first.release()


def test_an_attempt_that_cannot_be_read_counts_until_it_is_old(tmp_path):
    take(tmp_path)
    path = tmp_path / "attempts" / "0001.json"
    path.write_text('{"host": ')
    assert read_owner(tmp_path, 1) is None and claim(tmp_path) is None
    os.utime(path, (1, 1))
    assert take(tmp_path) == 2


def test_a_heart_beats_while_the_folder_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "BEAT_SECONDS", 0.01)
    mine = claim(tmp_path)
    os.utime(mine.path, (1, 1))
    with mine.beating():
        wait_for("a heartbeat", lambda: mine.path.stat().st_mtime > 1)
    os.utime(mine.path, (1, 1))
    time.sleep(0.05)
    assert mine.path.stat().st_mtime == 1  # and not after it
    mine.release()


@pytest.mark.parametrize(
    ("state", "ended"), [("RUNNING", False), ("COMPLETING", False), ("PENDING", True), ("NODE_FAIL", True), (None, True)]
)
def test_a_job_that_left_its_node_has_ended_wherever_it_ran(tmp_path, monkeypatch, state, ended):
    become_job(monkeypatch)
    take(tmp_path)
    rewrite(tmp_path, 1, machine="another", ended_at="")
    queue_says(monkeypatch, **({"job_7_1": state} if state else {}))
    assert has_ended(tmp_path, 1, read_owner(tmp_path, 1)) is ended
    become_job(monkeypatch, job="8_1")  # another job, that was submitted because this one was thought lost
    assert take(tmp_path) == (2 if ended else None)


def test_what_the_queue_cannot_show_proves_nothing(tmp_path, monkeypatch):
    become_job(monkeypatch)
    take(tmp_path)
    rewrite(tmp_path, 1, machine="another", ended_at="")
    owner = read_owner(tmp_path, 1)
    monkeypatch.setattr(attempts, "read_queue", lambda max_age: None)  # no Slurm here, or it does not answer
    assert not has_ended(tmp_path, 1, owner)
    queue_says(monkeypatch)
    assert not has_ended(tmp_path, 1, replace(owner, job=replace(owner.job, user="somebody else")))
    assert not has_ended(tmp_path, 1, replace(owner, job=replace(owner.job, cluster="dale")))
    assert has_ended(tmp_path, 1, owner)


def test_an_older_answer_of_the_queue_is_not_trusted_to_end_a_job(tmp_path, monkeypatch):
    """Between two looks at the queue the job may have been started: it was pending then, and trains now."""
    become_job(monkeypatch)
    take(tmp_path)
    rewrite(tmp_path, 1, machine="another", ended_at="")
    owner = read_owner(tmp_path, 1)
    answers = {True: "PENDING", False: "RUNNING"}
    monkeypatch.setattr(
        attempts, "read_queue", lambda age: Queue("hill", owner.job.user, {"7_1": QueuedJob(answers[age > 0], "study", "None")})
    )
    assert not has_ended(tmp_path, 1, owner)


def test_a_job_that_is_started_anew_follows_itself_and_fences_the_one_left_behind(tmp_path, monkeypatch):
    become_job(monkeypatch, restarts=0)
    left_behind = claim(tmp_path)  # alive, and locked
    become_job(monkeypatch, job="7_2", restarts=1)
    assert claim(tmp_path) is None  # another element of the array has no right to it
    become_job(monkeypatch, restarts=1)
    anew = claim(tmp_path)
    assert anew.number == 2 and anew.owner.job == JobRef("hill", anew.owner.job.user, "7_1", 1)
    with pytest.raises(Fenced):
        left_behind.guard()
    left_behind.release()  # which says nothing of the newer one
    assert newest(tmp_path) == 2 and not read_owner(tmp_path, 2).ended_at
    become_job(monkeypatch, restarts=0)
    assert claim(tmp_path) is None  # nor may the older start take it back
    anew.guard()
    anew.release()


def test_a_trainer_that_is_fenced_leaves_every_file_as_it_is(tmp_path, token_data, monkeypatch):
    manifest = token_data.manifest
    shape = ModelShape(1, 16, 2, vocab_size=257, context=16)
    pin = DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256)
    cell = Cell(DesignChoice("preln"), "", shape, Recipe(12, 2, 0.002, validation_windows=2), 0, pin)
    folder = run_folder(tmp_path, cell)
    folder.create(cell)
    seen, notes = {}, []

    def files():
        paths = [path for path in sorted(folder.path.rglob("*")) if path.is_file() and path.parent.name != "attempts"]
        return {path: path.read_bytes() for path in paths}

    def take_over(step):
        if step.step == 6:
            become_job(monkeypatch, restarts=1)
            seen["newer"] = claim(folder.path)
            seen["files"] = files()

    become_job(monkeypatch, restarts=0)
    status = train_cell(folder, token_data, Execution(checkpoint_steps=1), report=take_over, notify=notes.append)
    assert status == CLAIMED and "followed by attempt 2" in notes[-1]
    assert files() == seen["files"] and folder.result() is None and not folder.failure_path.exists()
    assert folder.last_row()["step"] <= 6
    seen["newer"].release()

    become_job(monkeypatch, restarts=2)  # whoever has it now brings it to its end
    assert train_cell(folder, token_data, Execution()) == "done"
    rows = [json.loads(line)["step"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, 13))
    result = folder.result_path.read_bytes()
    assert train_cell(folder, token_data, Execution()) == "done" and folder.result_path.read_bytes() == result
