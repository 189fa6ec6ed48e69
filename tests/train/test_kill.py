"""`depthbench train` killed with SIGKILL and continued: the run ends as if nothing had happened, bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from train.runs import assert_same_run, newest, rows

STEPS = 160
LAST_KILL = 80  # far enough from the end that a busy machine does not finish the run before the kill
SEED = 20
STARTER = Path(__file__).with_name("starter.py")


class Starter:
    """Starts the command in a process of its own."""

    def __init__(self, process):
        self.process = process

    def start(self, out, tokens, die=None):
        """Start a run and return its process id."""
        sizes = {"n-layers": 2, "d-model": 16, "heads": 2, "d-ff": 16, "context": 16, "batch-size": 4, "steps": STEPS, "seed": 1}
        saving = {"validation-every": 25, "validation-windows": 4, "checkpoint-steps": 7, "checkpoint-seconds": 0}
        options = {"design": "preln", "data": tokens, "out": out} | sizes | saving
        arguments = ["train", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        print(json.dumps({"arguments": arguments, "die": die}), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def wait(self):
        """The exit code of the run."""
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def starter():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, STARTER], text=True, env=environment, **pipes) as process:
        yield Starter(process)
        process.kill()


@pytest.fixture(scope="module")
def whole(starter, tokens_folder, tmp_path_factory):
    """The folder of the run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    starter.start(out, tokens_folder)
    assert starter.wait() == 0
    return run_folder(out)


def run_folder(out):
    (folder,) = (out / "cells").iterdir()
    return folder


def rows_written(out):
    """How many rows the run under `out` has, while it runs."""
    found = list(out.glob("cells/*/metrics.jsonl"))
    return found[0].read_bytes().count(b"\n") if found else 0


def runs(child):
    """Whether a run is still there."""
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return False
    return True


def result(folder):
    """The result without its clock."""
    found = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in found.items() if key not in ("seconds", "tokens_per_second", "finished_at")}


def test_ten_kills_at_random_moments_change_no_bit(starter, whole, tokens_folder, tmp_path, record_property):
    draw = random.Random(SEED)
    moments = [(count, draw.uniform(0, 0.01)) for count in sorted(draw.sample(range(1, LAST_KILL), 9))]
    moments.insert(0, (0, draw.uniform(0, 0.1)))  # one before the first row, somewhere in the start
    record_property("kill_moments", moments)
    for count, delay in moments:
        child = starter.start(tmp_path, tokens_folder)
        while rows_written(tmp_path) < count and runs(child):
            time.sleep(0.001)
        time.sleep(delay)
        assert runs(child), f"ended by itself before it had {count} rows"
        os.kill(child, signal.SIGKILL)
        assert starter.wait() == -signal.SIGKILL, f"killed after its end, at {count} rows"
    starter.start(tmp_path, tokens_folder)
    assert starter.wait() == 0
    folder = run_folder(tmp_path)
    assert [row["step"] for row in rows(folder)] == list(range(1, STEPS + 1))
    assert_same_run(folder, whole)
    assert result(folder) == result(whole)
    assert not [path for path in folder.rglob("*") if path.name.endswith((".part", ".unusable"))]


@pytest.mark.parametrize(("moment", "there"), [("half", [7, 14]), ("unrenamed", [7, 14]), ("renamed", [7, 14, 21])])
def test_a_kill_while_saving_changes_no_bit(starter, whole, tokens_folder, tmp_path, moment, there):
    starter.start(tmp_path, tokens_folder, die=moment)
    assert starter.wait() == -signal.SIGKILL
    folder = run_folder(tmp_path)
    assert sorted(int(path.name[5:15]) for path in folder.glob("checkpoint/step-*")) == there
    starter.start(tmp_path, tokens_folder)
    assert starter.wait() == 0
    assert_same_run(folder, whole)
    assert len(list((folder / "checkpoint").iterdir())) == 2 and newest(folder).name == f"step-{STEPS:010d}.safetensors"
