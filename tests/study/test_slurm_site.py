"""A study on a real Slurm of two nodes, in which a job is killed, one is preempted, and a node dies under a third.

What is held here: in the end every run has one result, equal bit for bit to that of a local run, and nobody wrote twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from depthbench.study.attempt import Owner, newest, read_owner
from depthbench.study.store import RunFolder, find_runs
from slurm_site import Site, wait_for, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"), pytest.mark.xdist_group("slurm")]

# Pre-LN that takes its time for as long as there is a file GATE, so that a test can reach into a run half-way
DESIGN = """
import os, time
from pathlib import Path
from depthbench import Link, Residual
from torch import nn

class Plain(Link):
    def __init__(self, d_model):
        super().__init__()
        self.norm = nn.RMSNorm(d_model)
    def read(self, state): return self.norm(state)
    def write(self, state, y): return state + y

class Slow(Residual):
    def link(self, i): return Plain(self.shape.d_model)
    def open(self, embedding):
        if (gate := os.environ.get("GATE")) and Path(gate).exists():
            time.sleep(0.1)
        return embedding
"""
STEPS = 1500
STUDY = """
from depthbench import Recipe, Study
from depthbench.shape import ModelShape

def study():
    shape = ModelShape(n_layers=1, d_model=16, n_heads=2, vocab_size=257, context=16)
    return Study("site", ("{folder}/slow.py:Slow",), (1e-3,), Recipe(steps={steps}, batch_size=2, learning_rate=1e-3,
                 validation_windows=4), shapes=(shape,), seeds=(0, 1, 2))
"""


@pytest.fixture
def site(tmp_path):
    (tmp_path / "site").mkdir()
    with Site(tmp_path / "site") as started:
        yield started


def _command(folder: Path, data: Path, out: str) -> list[str]:
    words = ["run", f"{folder}/my_study.py:study", "--data", str(data), "--out", str(folder / out), "--checkpoint-steps", "5"]
    return [sys.executable, "-m", "depthbench", *words]


def _by_seed(out: Path) -> dict[int, RunFolder]:
    return {run.cell().seed: run for run in find_runs(out)} if (out / "cells").exists() else {}


def _step(run: RunFolder) -> int:
    return int(run.last_row().get("step", 0))


def test_killed_preempted_and_lost_jobs_end_with_the_results_of_local_runs(tmp_path, tokens_folder, site):
    (tmp_path / "slow.py").write_text(DESIGN)
    (tmp_path / "my_study.py").write_text(STUDY.format(folder=tmp_path, steps=STEPS))
    gate = tmp_path / "gate"
    gate.touch()
    environment = {**site.whole_environment(), "GATE": str(gate), "OMP_NUM_THREADS": "1"}
    log = open(tmp_path / "run.log", "wb")  # noqa: SIM115 (the process keeps it)
    command = [*_command(tmp_path, tokens_folder, "out"), "--slurm", "partition=low,time=20,cpus=1,array_parallelism=2"]
    run = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _trouble(site, tmp_path / "out", environment)
        gate.unlink()
        wait_for("the study to end", lambda: run.poll() is not None)
    finally:
        run.kill()
        log.close()
        print((tmp_path / "run.log").read_text())
    assert run.returncode == 0
    assert "has gone without a result" in (tmp_path / "run.log").read_text()

    subprocess.run(_command(tmp_path, tokens_folder, "local"), env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    clustered, local = _by_seed(tmp_path / "out"), _by_seed(tmp_path / "local")
    for seed in (0, 1, 2):
        _assert_equal(clustered[seed], local[seed])


def test_one_run_over_two_nodes_has_the_losses_of_one_process(tmp_path, tokens_folder, site):
    (tmp_path / "slow.py").write_text(DESIGN)
    (tmp_path / "my_study.py").write_text(STUDY.format(folder=tmp_path, steps=30))
    environment = {**site.whole_environment(), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}  # its node names are no hosts
    one_seed = ["--seeds", "0"]
    spread = ["--processes-per-run", "2", "--parallel", "fsdp", "--slurm", "partition=low,time=20,nodes=2,cpus=1"]
    subprocess.run([*_command(tmp_path, tokens_folder, "out"), *one_seed, *spread], env=environment, check=True)
    subprocess.run([*_command(tmp_path, tokens_folder, "local"), *one_seed], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    ours, local = _by_seed(tmp_path / "out")[0], _by_seed(tmp_path / "local")[0]
    assert ours.result()["loss"] == pytest.approx(local.result()["loss"], abs=1e-5)
    assert _step(ours) == 30
    (attempt,) = json.loads((ours.path / "environment.json").read_text())["attempts"]
    assert attempt["execution"]["processes"] == attempt["execution"]["nodes"] == 2


def _trouble(site: Site, out: Path, environment: dict[str, str]) -> None:
    """Kill one, preempt one, and take the node away under one."""

    def on_a_node() -> dict[str, int]:
        """The nodes that train, and the seed that each has, some updates after the start."""
        found = {}
        for seed, run in _by_seed(out).items():
            owner = run.owner()
            if owner is not None and owner.job is not None and _step(run) >= 6:
                found[owner.host] = seed
        return found

    wait_for("two nodes at work", lambda: len(on_a_node()) == 2)
    status = [sys.executable, "-m", "depthbench", "status", str(out), "--json"]
    shown = json.loads(subprocess.run(status, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert shown["counts"] == {"running": 2, "queued": 1}
    assert {cell["host"] for cell in shown["cells"] if cell["status"] == "running"} == {"n1", "n2"}
    assert all(cell["eta_seconds"] for cell in shown["cells"] if cell["status"] == "running")

    runs, at_work = _by_seed(out), on_a_node()
    # one killed: the trainer alone, without a word
    killed = Attempt(runs[at_work["n1"]])
    os.kill(killed.owner.pid, signal.SIGKILL)
    # one preempted, saved before it goes
    preempted = Attempt(runs[at_work["n2"]])
    site.submit("--partition=high", "--nodelist=n2", "--cpus-per-task=2", "--time=5", script="sleep 1")
    wait_for("another attempt at the preempted run", preempted.is_followed)
    assert preempted.said_that_it_ended() and not killed.said_that_it_ended()
    wait_for("another attempt at the killed run", killed.is_followed)
    # one or two under which the node dies, while their trainers live on
    wait_for("a run on the first node", lambda: "n1" in on_a_node())
    there = [attempt for attempt in map(Attempt, runs.values()) if attempt.owner.host == "n1"]
    site.kill("n1")
    wait_for("another attempt at a lost run", lambda: any(attempt.is_followed() for attempt in there))
    lost = next(attempt for attempt in there if attempt.is_followed())
    wait_for("the trainer that was left behind to stop", lambda: not Path(f"/proc/{lost.owner.pid}").exists())
    assert Attempt(lost.run).owner.host == "n2"


class Attempt:
    """The attempt that is the newest one now."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.number = run, newest(run.path)
        self.owner = self.read()

    def read(self) -> Owner:
        owner = read_owner(self.run.path, self.number)
        assert owner is not None
        return owner

    def is_followed(self) -> bool:
        return newest(self.run.path) > self.number

    def said_that_it_ended(self) -> bool:
        return bool(self.read().ended_at)


def _assert_equal(ours: RunFolder, local: RunFolder) -> None:
    """One result, every update once, and the same numbers to the last bit."""
    assert ours.result()["loss"] == local.result()["loss"]
    rows = [[json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()] for run in (ours, local)]
    assert [row["step"] for row in rows[0]] == list(range(1, STEPS + 1))
    for key in ("loss", "gradient_norm", "learning_rate"):
        assert [row[key] for row in rows[0]] == [row[key] for row in rows[1]]
    weights = [load_file(next((run.path / "checkpoint").glob(f"*{STEPS}.safetensors"))) for run in (ours, local)]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
