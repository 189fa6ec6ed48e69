"""Run folders: what they say of their run, who holds them, and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from depthbench import ModelShape
from depthbench.errors import UserError
from depthbench.study.cell import Cell, DataPin, DesignChoice
from depthbench.study.results import read_results
from depthbench.study.store import find_runs, run_folder
from depthbench.train.recipe import Recipe

SHAPE = ModelShape(2, 16, 2, vocab_size=257, context=32)
CELL = Cell(DesignChoice("preln"), "", SHAPE, Recipe(10, 4, 0.002), 0, DataPin("stdlib", "bytes", "f" * 64, "v" * 64))


@pytest.fixture
def folder(tmp_path):
    folder = run_folder(tmp_path, CELL)
    folder.create(CELL)
    return folder


def test_creating_twice_is_fine_and_the_cell_comes_back(folder):
    folder.create(CELL)
    assert folder.cell() == CELL


def test_a_folder_of_another_cell_is_refused(folder):
    with pytest.raises(UserError, match="holds another cell"):
        folder.create(replace(CELL, seed=1))


def test_a_folder_made_by_a_newer_version_is_refused(folder):
    (folder.path / "cell.json").write_text(json.dumps({**CELL.content(), "format": 99}))
    with pytest.raises(UserError, match="newer DepthBench"):
        folder.create(CELL)
    folder.result_path.write_text(json.dumps({"status": "done", "format": 99}))
    with pytest.raises(UserError, match="newer DepthBench"):
        folder.result()


def test_states(folder):
    assert folder.state().status == "waiting"
    (folder.path / "metrics.jsonl").write_text('{"step": 3, "loss": 2.0}\n{"step": 4, "lo')  # killed while writing
    with folder.claimed() as mine:
        assert mine
        assert (folder.state().status, folder.state().step) == ("running", 3)
    folder.failure_path.write_text('{"error": "out of luck"}')
    assert (folder.state().status, folder.state().note) == ("failed", "out of luck")
    folder.result_path.write_text('{"status": "diverged", "steps": 4}')
    assert (folder.state().status, folder.state().note) == ("diverged", "at step 4")
    folder.result_path.write_text("{")
    assert folder.state().status == "unreadable"


def test_one_process_holds_a_folder_and_a_dead_one_frees_it(folder):
    hold = (
        "import sys, time; from pathlib import Path; from depthbench.study.store import RunFolder\n"
        f"with RunFolder(Path({str(folder.path)!r})).claimed() as mine: print(mine.number, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "1\n"
        with folder.claimed() as mine:
            assert not mine
        assert folder.is_claimed()
        holder.kill()
    with folder.claimed() as mine:
        assert mine


def test_results_name_what_cannot_be_read_and_carry_on(tmp_path, folder):
    other = replace(CELL, seed=1)
    run_folder(tmp_path, other).create(other)
    folder.result_path.write_text("not json")
    rows, missing = read_results(tmp_path)
    assert rows == []
    assert any("unreadable" in line and "result.json" in line for line in missing)
    assert any("seed 1: waiting" in line for line in missing)


def test_a_folder_without_runs_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="holds no runs"):
        find_runs(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        find_runs(tmp_path / "absent")


def test_whoever_holds_a_folder_removes_what_a_killed_writer_left(folder):
    left, ticket = folder.path / ".cell.json.123.part", folder.path / ".job.json.123.part"
    left.write_text("{")
    ticket.write_text("{")  # its writer need not hold the folder
    with folder.claimed() as mine:
        assert mine
        assert not left.exists() and ticket.exists()
