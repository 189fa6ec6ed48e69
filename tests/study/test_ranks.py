"""Runs by two processes through torchrun, as `--processes-per-run 2` starts them: resumed with other counts, stopped, killed."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from depthbench import ModelShape
from depthbench.errors import UserError
from depthbench.study.cell import DataPin
from depthbench.study.ranks import _node, launch
from depthbench.study.runner import Runner
from depthbench.study.store import RunFolder, run_folder
from depthbench.study.study import Study
from depthbench.study.train_cell import train_cell
from depthbench.study.work import FixedWork
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe

SHAPE = ModelShape(2, 16, 4, n_kv_heads=2, d_ff=24, vocab_size=257, context=16)
STUDY = Study(
    name="shared",
    designs=("hc",),
    learning_rates=(4e-3,),
    recipe=Recipe(40, 6, 4e-3, validation_windows=8),
    shapes=(SHAPE,),
    seeds=(0,),
)
TWO = Execution(processes=2, checkpoint_steps=5)
SHARDED = replace(TWO, parallel="fsdp")
ONE = Execution(checkpoint_steps=5)


@pytest.fixture(autouse=True)
def one_thread_is_enough(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def created(out, data, study=STUDY) -> RunFolder:
    manifest = data.manifest
    (cell,) = study.cells(DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256))
    folder = run_folder(out, cell)
    folder.create(cell)
    return folder


def losses(folder: RunFolder) -> list[float]:
    """The loss of every update, each of which must be there once, and the last validation loss."""
    rows = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["loss"] for row in rows] + [folder.result()["loss"]]


def train(folder, data, tokens_folder, execution, updates=None):
    """A part of a run, up to about `updates` more updates, by as many processes as `execution` says."""
    seen = []

    def enough():
        return updates is not None and len(seen) >= updates

    if execution.processes == 1:
        return train_cell(folder, data, execution, report=seen.append, should_stop=enough)
    return launch(folder.path, tokens_folder, execution, report=seen.append, should_stop=enough)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, token_data, tokens_folder):
    folder = created(tmp_path_factory.mktemp("alone"), token_data)
    assert train(folder, token_data, tokens_folder, ONE) == "done"
    return losses(folder)


@pytest.mark.parametrize(
    "parts", [(TWO, ONE), (ONE, TWO), (SHARDED, ONE), (ONE, SHARDED), (TWO, SHARDED)], ids=["2-1", "1-2", "f2-1", "1-f2", "2-f2"]
)
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, token_data, tokens_folder, alone, parts):
    folder = created(tmp_path, token_data)
    assert train(folder, token_data, tokens_folder, parts[0], updates=12) == "stopped"
    begun = len((folder.path / "metrics.jsonl").read_text().splitlines())
    assert 12 <= begun < 40
    assert train(folder, token_data, tokens_folder, parts[1]) == "done"
    assert losses(folder) == pytest.approx(alone, abs=1e-5)
    attempts = json.loads((folder.path / "environment.json").read_text())["attempts"]
    assert [attempt["execution"]["processes"] for attempt in attempts] == [part.processes for part in parts]


def children(pid: int) -> list[int]:
    """All processes below one, the nearest first."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(int(child))]
    return found


def ranks() -> dict[int, int]:
    """Process number of every rank below this process."""
    found = {}
    for pid in children(os.getpid()):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {int(line[5:]): pid for line in environment if line.startswith(b"RANK=")}
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds its processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_fails_the_run_which_then_goes_on(tmp_path, token_data, tokens_folder, alone, rank):
    folder = created(tmp_path, token_data)
    killed = threading.Event()

    def kill(step):
        if step.step >= 12 and not killed.is_set():
            killed.set()
            os.kill(ranks()[rank], signal.SIGKILL)

    with pytest.raises(UserError, match="process of the run died"):
        launch(folder.path, tokens_folder, TWO, report=kill)
    assert "process of the run died" in json.loads(folder.failure_path.read_text())["error"]
    assert folder.state().status == "failed" and folder.result() is None
    assert launch(folder.path, tokens_folder, TWO) == "done"
    assert losses(folder) == pytest.approx(alone, abs=1e-5) and not folder.failure_path.exists()


def test_a_run_that_another_process_holds_is_left_alone(tmp_path, token_data, tokens_folder):
    folder = created(tmp_path, token_data)
    release, begun = threading.Event(), threading.Event()

    def hold(step):
        begun.set()
        release.wait(60)

    holder = threading.Thread(target=train_cell, args=(folder, token_data, ONE), kwargs={"report": hold})
    holder.start()
    assert begun.wait(60)
    try:
        assert launch(folder.path, tokens_folder, TWO) == "claimed"
    finally:
        release.set()
        holder.join()
    assert folder.result()["status"] == "done"


def test_what_cannot_be_shared_fails_in_one_line(tmp_path, token_data, tokens_folder):
    folder = created(tmp_path, token_data, replace(STUDY, recipe=replace(STUDY.recipe, batch_size=1)))
    began = time.monotonic()
    with pytest.raises(UserError, match="2 processes cannot share a batch of 1 sequences; use fewer, or a larger batch"):
        launch(folder.path, tokens_folder, TWO)
    assert time.monotonic() - began < 60  # the others do not wait for one that never comes
    assert "cannot share a batch" in folder.state().note


def test_the_runner_gives_every_run_its_processes(tmp_path, token_data, tokens_folder, alone):
    manifest = token_data.manifest
    cells = STUDY.cells(DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256))
    ended = Runner(FixedWork(cells), tokens_folder, tmp_path, workers=1, execution=SHARDED).run()
    assert ended.count("done") == 1
    assert losses(run_folder(tmp_path, cells[0])) == pytest.approx(alone, abs=1e-5)


def test_several_nodes_meet_where_slurm_says(monkeypatch):
    execution = Execution(processes=4, nodes=2)
    for name in ("SLURM_NODEID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="--slurm nodes=2,… or NODE_RANK, MASTER_ADDR and MASTER_PORT"):
        _node(execution)
    for name, value in {"SLURM_NODEID": "1", "SLURM_JOB_ID": "41", "MASTER_ADDR": "10.0.0.7"}.items():
        monkeypatch.setenv(name, value)
    assert _node(execution) == (1, "10.0.0.7", 20_041)
