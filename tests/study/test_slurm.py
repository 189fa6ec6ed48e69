"""What is said to Slurm, and what follows from its answers; the commands are stand-ins, the jobs train for real."""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from depthbench import Budget, UserError
from depthbench.study import slurm, slurm_queue
from depthbench.study.cell import DataPin
from depthbench.study.runner import Runner
from depthbench.study.slurm import SlurmRunner, check_available, sbatch_parameters
from depthbench.study.slurm_options import SlurmOptions
from depthbench.study.store import run_folder
from depthbench.study.study import Study
from depthbench.study.watch import Watcher
from depthbench.study.work import FixedWork
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe
from fake_slurm import FakeSlurm

STUDY = Study(
    name="tiny",
    designs=("preln",),
    learning_rates=(4e-3,),
    recipe=Recipe(6, 2, 4e-3, validation_windows=4),
    budget=Budget(12e3, match="backbone", n_heads=2, vocab_size=257, context=32),
    n_layers=(1,),
    seeds=(0, 1, 2),
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    fake = FakeSlurm(tmp_path / "site")
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.2)
    slurm_queue._site.cache_clear()
    yield fake
    fake.behave()
    slurm_queue._site.cache_clear()
    slurm_queue._Last.queue = slurm_queue._Last.at = None  # the answers of this site are not those of the next


class Heard(Watcher):
    """What a runner says, and a chance to act at its next turn."""

    def __init__(self, at_turn=lambda running, report, waiting: None):
        self.said, self.at_turn = [], at_turn

    def tell(self, text):
        self.said.append(text)

    def note(self, cell, text):
        self.said.append(text)

    def tick(self, running, report, waiting):
        self.at_turn(running, report, waiting)


def cells_of(data, study=STUDY):
    manifest = data.manifest
    return study.cells(DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256))


def runner(cells, folder, out, watcher=None, options="time=5"):
    return SlurmRunner(
        FixedWork(cells), folder, out, options=SlurmOptions.parse(options), execution=Execution(), watcher=watcher or Heard()
    )


def test_a_study_is_submitted_in_arrays_that_the_site_takes_and_only_once(tmp_path, token_data, tokens_folder, site):
    cells, out = cells_of(token_data), tmp_path / "out"
    report = runner(cells, tokens_folder, out).run()
    assert report.count("done") == 3 and not report.interrupted
    scripts = site.submissions()
    assert len(scripts) == 2 and "#SBATCH --array=0-1%2" in scripts[0] and "--array" not in scripts[1]
    assert all(f"#SBATCH --{flag}" in scripts[0] for flag in ("time=5", "requeue", "signal=USR2@90", "ntasks-per-node=1"))
    again = runner(cells, tokens_folder, out).run()
    assert (again.ended, again.already_done) == ([], 3) and len(site.submissions()) == 2
    Runner(FixedWork(cells), tokens_folder, tmp_path / "local", workers=1, execution=Execution()).run()
    for cell in cells:
        assert run_folder(out, cell).result()["loss"] == run_folder(tmp_path / "local", cell).result()["loss"]


def test_jobs_that_vanish_are_submitted_again_but_not_for_ever(tmp_path, token_data, tokens_folder, site):
    site.misbehave("drop", "slurmstepd: error: could not open the container\n")
    heard = Heard()
    (cell, *_) = cells = cells_of(token_data)[:1]
    report = runner(cells, tokens_folder, tmp_path / "out", heard).run()
    assert len(site.submissions()) == slurm.LOST_LIMIT == 3
    assert report.count("failed") == 1 and report.ended[0].cell == cell
    assert "could not open the container" in report.ended[0].error and "without a result or progress" in report.ended[0].error
    assert sum("has gone without a result; submitting the run again" in text for text in heard.said) == 2
    site.behave()
    assert runner(cells, tokens_folder, tmp_path / "out").run().count("done") == 1  # the same command tries it anew


def test_a_refusal_is_said_in_slurms_words_and_leaves_no_ticket(tmp_path, token_data, tokens_folder, site):
    site.misbehave("refuse", "invalid partition specified: gpuu\nBatch job submission failed")
    cells = cells_of(token_data)
    with pytest.raises(UserError, match=r"Slurm refused the jobs: .*invalid partition specified: gpuu.*; mend --slurm"):
        runner(cells, tokens_folder, tmp_path / "out").run()
    assert not list((tmp_path / "out").rglob("job.json")) and not list((tmp_path / "out" / "slurm").glob("*/"))


def test_a_refusal_while_jobs_run_is_waited_out(tmp_path, token_data, tokens_folder, site, monkeypatch):
    monkeypatch.setattr(slurm, "REFUSED_SECONDS", 0.5)
    monkeypatch.setattr(slurm.SlurmRunner, "_array_size", lambda self: 1)
    submit = slurm.submit

    calls = []

    def limited(*words):
        calls.append(words)
        if len(calls) == 2:
            site.misbehave("refuse", "Job violates accounting/QOS policy (job submit limit)")
        else:
            site.behave()
        return submit(*words)

    monkeypatch.setattr(slurm, "submit", limited)
    heard = Heard()
    report = runner(cells_of(token_data), tokens_folder, tmp_path / "out", heard).run()
    assert report.count("done") == 3
    assert sum("Slurm takes no more jobs for now: Job violates" in text for text in heard.said) == 1


def test_ctrl_c_leaves_the_jobs_and_the_same_command_follows_them(tmp_path, token_data, tokens_folder, site):
    site.misbehave("hold")
    cells, out = cells_of(token_data), tmp_path / "out"

    def stop(running, report, waiting):
        first.stopping = True

    heard = Heard(stop)
    first = runner(cells, tokens_folder, out, heard)
    report = first.run()
    assert report.interrupted and report.ended == [] and any("scancel 100 101" in text for text in heard.said)
    slurm_queue.read_queue(max_age=0.0)  # as a new process would
    assert {run_folder(out, cell).state().status for cell in cells} == {"queued"}
    seen = []

    def let_go(running, report, waiting):
        seen.append(waiting)
        site.behave()

    second = runner(cells, tokens_folder, out, Heard(let_go))
    assert second.run().count("done") == 3 and seen[0] == 3
    assert len(site.submissions()) == 2  # by the first


def test_a_local_worker_takes_part_and_the_job_leaves_its_cell_alone(tmp_path, token_data, tokens_folder, site):
    site.misbehave("hold")
    cells, out = cells_of(token_data)[:1], tmp_path / "out"
    done = []

    def train_here(running, report, waiting):
        if not done:
            done.append(Runner(FixedWork(cells), tokens_folder, out, workers=1, execution=Execution()).run())
            site.behave()

    report = runner(cells, tokens_folder, out, Heard(train_here)).run()
    assert done[0].count("done") == 1 and report.count("done") + report.already_done == 1
    for pid in site.jobs().values():
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
            time.sleep(0.05)
    assert len(list(run_folder(out, cells[0]).path.glob("attempts/*"))) <= 2


def test_a_failed_run_is_reported_with_its_error_and_not_submitted_again(tmp_path, token_data, tokens_folder, site):
    cells = cells_of(token_data, replace(STUDY, seeds=(0,)))
    moved = tmp_path / "tokens"
    moved.mkdir()
    report = runner(cells, moved, tmp_path / "out").run()
    assert report.count("failed") == 1 and "manifest.json" in report.ended[0].error and len(site.submissions()) == 1
    assert "manifest.json" in run_folder(tmp_path / "out", cells[0]).state().note


def test_a_silent_queue_is_waited_for(tmp_path, token_data, tokens_folder, site, monkeypatch):
    monkeypatch.setattr(slurm, "SILENCE_SECONDS", 0.5)
    heard = Heard()
    cells = cells_of(token_data)[:1]
    started = runner(cells, tokens_folder, tmp_path / "out", heard)
    site_muted = threading.Timer(0.1, site.misbehave, ("mute",))
    monkeypatch.setattr(slurm, "check_available", site_muted.start)
    threading.Timer(3.0, site.behave).start()
    assert started.run().count("done") == 1
    assert len(site.submissions()) == 1


def test_what_is_missing_is_named(monkeypatch, tmp_path, site):
    site.misbehave("mute")
    with pytest.raises(UserError, match="squeue does not answer"):
        check_available()
    (site.bin / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(site.bin))
    with pytest.raises(UserError, match="there is no sbatch here"):
        check_available()
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'depthbench\[slurm\]'"):
        check_available()


def test_options_are_read_as_slurm_users_write_them():
    text = "partition=a,b,time=1-12:00,gpus=8,cpus=64,mem=200G,nodes=2,exclude=n[1,3-5],n9,sbatch.reservation=night,setup=ml x;ml y"
    options = SlurmOptions.parse(text)
    assert (options.partition, options.time, options.gpus, options.nodes) == ("a,b", 2160, 8, 2)
    assert options.exclude == "n[1,3-5],n9" and options.extra == (("reservation", "night"),) and options.setup == "ml x;ml y"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("30:00", 30), ("30:01", 31), ("8:00:00", 480), ("2-0", 2880), ("1-12:30", 2190), ("1-12:30:01", 2191)],
)
def test_time_limits(text, minutes):
    assert SlurmOptions.parse(f"time={text}").time == minutes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partion=gpu", "did you mean 'partition'"),
        ("gpus=two", "gpus is a whole number"),
        ("gpus=-1", "gpus must be at least 0"),
        ("time=soon", "time=soon cannot be read"),
        ("time=0", "time must be at least 1"),
        ("gpus=1,gpus=2", "gives gpus twice"),
        ("partition", "cannot read 'partition'"),
        ("", "cannot read ''"),
        ("nodes=0", "nodes must be at least 1"),
    ],
)
def test_options_that_cannot_be_read(text, message):
    with pytest.raises(UserError, match=message):
        SlurmOptions.parse(text)


def test_the_job_asks_for_what_its_processes_need():
    wanted = sbatch_parameters(
        "x", SlurmOptions.parse("gpus=4,nodes=2,mem=9G,sbatch.nice=5"), Execution(threads=3, processes=8, nodes=2)
    )
    assert (wanted["nodes"], wanted["ntasks_per_node"], wanted["cpus_per_task"], wanted["gpus_per_node"]) == (2, 1, 12, 4)
    assert wanted["additional_parameters"] == {"requeue": True, "nice": "5"} and wanted["partition"] is None
