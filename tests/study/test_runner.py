"""The runner with real worker processes: failures, deaths, interruptions and two runners in one folder."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from depthbench import Budget
from depthbench.study.cell import DataPin
from depthbench.study.results import read_results
from depthbench.study.runner import Runner
from depthbench.study.store import run_folder
from depthbench.study.study import Study
from depthbench.study.watch import Watcher
from depthbench.study.work import FixedWork
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe

STUDY = Study(
    name="tiny",
    designs=("preln",),
    learning_rates=(4e-3,),
    recipe=Recipe(12, 4, 4e-3, validation_windows=8),
    budget=Budget(12e3, match="backbone", n_heads=2, vocab_size=257, context=32),
    n_layers=(1, 3),
    seeds=(0, 1),
)
EXPLODES = """
from depthbench import Residual
from depthbench.residual.preln import PreLN, PreLNLink
class Link(PreLNLink):
    def write(self, state, y):
        if state.shape[-1] == 16 and state.shape[-2] == 32: {how}
        return super().write(state, y)
class Explodes(PreLN):
    def link(self, i): return Link(self.shape.d_model)
"""


def cells_of(study, data):
    manifest = data.manifest
    return study.cells(DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256))


def run(study, data, folder, out, workers=2, watcher=None):
    cells = cells_of(study, data)
    execution = Execution(checkpoint_steps=4)
    return cells, Runner(FixedWork(cells), folder, out, workers=workers, execution=execution, watcher=watcher).run()


def attempts(out, cell):
    return len(json.loads((run_folder(out, cell).path / "environment.json").read_text())["attempts"])


def test_all_cells_are_trained_once_and_a_second_run_does_nothing(tmp_path, token_data, tokens_folder):
    cells, first = run(STUDY, token_data, tokens_folder, tmp_path)
    assert (first.count("done"), first.already_done, first.interrupted) == (4, 0, False)
    for cell in cells:
        folder = run_folder(tmp_path, cell)
        assert folder.result()["status"] == "done" and folder.result()["loss"] > 0
        assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 12
    before = {cell: run_folder(tmp_path, cell).result_path.stat().st_mtime_ns for cell in cells}
    _, second = run(STUDY, token_data, tokens_folder, tmp_path)
    assert (second.ended, second.already_done) == ([], 4)
    assert before == {cell: run_folder(tmp_path, cell).result_path.stat().st_mtime_ns for cell in cells}


@pytest.mark.parametrize(
    ("how", "error"),
    [("raise ValueError('cannot go on')", "cannot go on"), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")],
)
def test_a_failure_takes_only_its_cell_down(tmp_path, token_data, tokens_folder, how, error):
    design = tmp_path / "explodes.py"
    design.write_text(EXPLODES.format(how=how))
    study = replace(
        STUDY, designs=("preln", f"{design}:Explodes"), n_layers=(), budget=None, seeds=(0,), shapes=tuple(_two_shapes())
    )
    _, report = run(study, token_data, tokens_folder, tmp_path / "out")
    failed = [item for item in report.ended if item.status == "failed"]
    assert report.count("done") == 3 and len(failed) == 1 and error in failed[0].error
    assert (failed[0].cell.design.name, failed[0].cell.shape.d_model) == (f"{design}:Explodes", 16)
    state = run_folder(tmp_path / "out", failed[0].cell).state()
    assert state.status == "failed" and error in state.note
    _, again = run(study, token_data, tokens_folder, tmp_path / "out")
    assert again.already_done == 3 and again.count("failed") == 1  # it is tried again, and the others are not


def _two_shapes():
    first = STUDY.solved_shapes()[0]
    return [replace(first, n_layers=1, d_model=d, head_dim=d // 2, d_ff=24) for d in (16, 20)]


def test_two_runners_share_a_folder_and_train_nothing_twice(tmp_path, token_data, tokens_folder):
    study = replace(STUDY, seeds=(0, 1, 2), recipe=replace(STUDY.recipe, steps=100))
    cells = cells_of(study, token_data)
    command = _runner_command(tmp_path, tokens_folder, study)
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True) as other:
        while not list(tmp_path.glob("cells/*/environment.json")) and other.poll() is None:
            time.sleep(0.05)  # until the other has taken a cell
        _, report = run(study, token_data, tokens_folder, tmp_path, workers=1)
        others = json.loads(other.communicate()[0])
    assert all(run_folder(tmp_path, cell).result()["status"] == "done" for cell in cells)
    assert [attempts(tmp_path, cell) for cell in cells] == [1] * len(cells)
    assert report.count("done") + report.already_done == len(cells) and others["done"] > 0


def _runner_command(out, tokens_folder, study):
    return f"""
import json
from depthbench import Budget, ModelShape
from depthbench.data import TokenData
from depthbench.study.cell import DataPin
from depthbench.study.results import read_results
from depthbench.study.runner import Runner
from depthbench.study.study import Study
from depthbench.study.work import FixedWork
from depthbench.train.execution import Execution
from depthbench.train.recipe import Recipe
from pathlib import Path
study, folder = {study!r}, Path({str(tokens_folder)!r})
manifest = TokenData.open(folder).manifest
cells = study.cells(DataPin("made-up", "bytes", manifest.fingerprint, manifest.validation_sha256))
report = Runner(FixedWork(cells), folder, Path({str(out)!r}), workers=1, execution=Execution(checkpoint_steps=4)).run()
print(json.dumps({{"done": report.count("done")}}))
"""


class InterruptAfterSomeSteps(Watcher):
    """Presses Ctrl-C once cells are under way."""

    def __init__(self):
        self.pressed = False

    def tick(self, running, report, waiting):
        if not self.pressed and any(item.step > 2 for item in running):
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_what_runs_and_a_second_run_continues(tmp_path, token_data, tokens_folder):
    study = replace(STUDY, n_layers=(3,), seeds=(0,), recipe=replace(STUDY.recipe, steps=200))
    (cell,), report = run(study, token_data, tokens_folder, tmp_path, watcher=InterruptAfterSomeSteps())
    assert report.interrupted and report.count("stopped") == 1
    folder = run_folder(tmp_path, cell)
    stopped_at = folder.state().step
    assert 2 < stopped_at < 200 and folder.result() is None
    assert f"step-{stopped_at:010d}.safetensors" in os.listdir(folder.path / "checkpoint")
    _, report = run(study, token_data, tokens_folder, tmp_path)
    assert report.count("done") == 1
    assert [json.loads(line)["step"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()] == list(range(1, 201))


def test_workers_end_when_their_parent_is_killed(tmp_path, token_data, tokens_folder):
    study = replace(STUDY, n_layers=(3,), seeds=(0,), recipe=replace(STUDY.recipe, steps=100_000))
    (cell,) = cells_of(study, token_data)
    folder = run_folder(tmp_path, cell)
    with subprocess.Popen([sys.executable, "-c", _runner_command(tmp_path, tokens_folder, study)]) as parent:
        deadline = threading.Event()
        threading.Timer(60, deadline.set).start()
        while folder.last_row().get("step", 0) < 3 and not deadline.is_set():
            time.sleep(0.05)
        parent.kill()
    while folder.is_claimed() and not deadline.is_set():
        time.sleep(0.05)
    assert not folder.is_claimed()  # it has saved and gone
    assert list((folder.path / "checkpoint").glob("step-*.safetensors"))


def test_a_run_keeps_the_design_it_was_planned_with(tmp_path, token_data, tokens_folder):
    """Editing or moving a user's file neither changes what a planned cell trains nor mixes two versions in one table."""
    design = tmp_path / "mine.py"
    text = EXPLODES.format(how="pass").replace("Explodes", "Mine")
    design.write_text(text)
    study = replace(STUDY, designs=(f"{design}:Mine",), n_layers=(1,), seeds=(0,))
    (cell,) = cells_of(study, token_data)
    run_folder(tmp_path, cell).create(cell)

    design.write_text(text.replace("super().write(state, y)", "super().write(state, 2 * y)"))
    (edited,) = cells_of(study, token_data)
    assert edited.identity != cell.identity
    Runner(FixedWork([cell, edited]), tokens_folder, tmp_path, workers=1, execution=Execution()).run()
    losses = [run_folder(tmp_path, c).result()["loss"] for c in (cell, edited)]
    assert losses[0] != losses[1]
    design.unlink()
    rows, missing = read_results(tmp_path)
    assert {row.design for row in rows} == {f"Mine@{c.design_hash[:6]}" for c in (cell, edited)} and not missing

    folder = run_folder(tmp_path, cell)
    folder.result_path.unlink()
    folder.design_path.write_text("# somebody else's")
    report = Runner(FixedWork([cell]), tokens_folder, tmp_path, workers=1, execution=Execution()).run()
    assert "changed" in report.ended[0].error or "no design" in report.ended[0].error
