"""Two processes that share a run compute what one computes: real processes, gloo on the loopback."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from depthbench.errors import UserError
from depthbench.model.parallel import Together
from depthbench.train.execution import Execution
from helpers import DESIGNS
from train.runs import RECIPE, layer_rows, newest, rows, training

WAYS = ("ddp", "fsdp")
TOLERANCE = 1e-5
ODD = {"batch_size": 3, "validation_windows": 7, "clip_norm": 0.05, "validation_every": 5}
RUNS = [
    *({"name": f"{design}-{way}", "design": design, "way": way} for design in DESIGNS for way in WAYS),
    *({"name": f"odd-{way}", "design": "hc", "way": way, "recipe": ODD} for way in WAYS),
    *({"name": f"micro-{way}", "design": "hc", "way": way, "recipe": ODD, "execution": {"micro_batch_size": 1}} for way in WAYS),
    *({"name": f"bf16-{way}", "design": "mhc", "way": way, "recipe": {"precision": "bf16"}} for way in WAYS),
    *({"name": f"diverges-{way}", "design": "deepnorm", "way": way, "recipe": {"learning_rate": 1e4}} for way in WAYS),
]
for one in RUNS:
    one["execution"] = {"layer_statistics": 6} | one.get("execution", {})


@pytest.fixture(scope="module")
def together(tokens_folder, tmp_path_factory) -> Path:
    """All runs, by two processes."""
    out = tmp_path_factory.mktemp("together")
    script = Path(__file__).with_name("together.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--max-restarts=0"]
    done = subprocess.run(
        [*command, str(script), str(tokens_folder), str(out), json.dumps(RUNS)],
        env={**os.environ, "PYTHONPATH": str(script.parent.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def alone(folder, data, run):
    recipe = replace(RECIPE, **run.get("recipe", {}))
    return training(folder, data, run["design"], recipe=recipe, execution=Execution(**run.get("execution", {}))).run()


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_losses_norms_and_weights_are_those_of_one_process(together, token_data, tmp_path, run):
    outcome = alone(tmp_path / "alone", token_data, run)
    ours, theirs = rows(tmp_path / "alone"), rows(together / run["name"])
    found = json.loads((together / run["name"] / "outcome.json").read_text())
    tolerance = 5e-3 if run["name"].startswith("bf16") else TOLERANCE
    assert (found["status"], found["step"]) == (outcome.status, outcome.step) and len(ours) == len(theirs)
    if outcome.status == "diverged":
        return
    assert found["loss"] == pytest.approx(outcome.validation.loss, abs=tolerance)
    for one, two in zip(ours, theirs, strict=True):
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert two[key] == pytest.approx(value, abs=tolerance), key
    if tolerance == TOLERANCE:
        whole = load_file(newest(tmp_path / "alone"))
        for name, tensor in load_file(newest(together / run["name"])).items():
            torch.testing.assert_close(tensor, whole.pop(name), rtol=0, atol=2e-4, msg=name)  # Adam divides tiny by tiny
        assert not whole
        seen = layer_rows(tmp_path / "alone"), layer_rows(together / run["name"])
        for one, two in zip(*seen, strict=True):
            assert one["step"] == two["step"]
            for ours_of, theirs_of in zip(one["blocks"], two["blocks"], strict=True):
                for key, value in ours_of.items():
                    assert theirs_of[key] == pytest.approx(value, rel=1e-3, abs=1e-6 if "mean" in key else 1e-9), key


def test_a_batch_smaller_than_the_processes_is_refused():
    sharing = Together.__new__(Together)
    sharing.rank, sharing.size = 0, 4
    with pytest.raises(UserError, match="4 processes cannot share a batch of 3 sequences"):
        sharing.rows(3)


@pytest.mark.parametrize(("size", "batch", "micro"), [(2, 6, 6), (2, 3, 1), (3, 8, 2), (4, 5, 3), (5, 5, 1)])
def test_every_row_counts_once_and_all_take_as_many_steps(size, batch, micro):
    seen, steps = [], set()
    for rank in range(size):
        sharing = Together.__new__(Together)
        sharing.rank, sharing.size = rank, size
        pieces = list(sharing.micro_batches(batch, micro))
        steps.add(len(pieces))
        seen += [row for piece, weight in pieces if weight for row in range(piece.start, piece.stop)]
        assert {weight for _, weight in pieces} <= {0.0, float(size)}
    assert sorted(seen) == list(range(batch)) and len(steps) == 1


def test_windows_of_an_evaluation_are_dealt_once_each():
    seen, turns = [], set()
    for rank in range(3):
        sharing = Together.__new__(Together)
        sharing.rank, sharing.size = rank, 3
        dealt = list(sharing.deal(iter(range(7))))
        turns.add(len(dealt))
        seen += [batch for batch, weight in dealt if weight]
    assert sorted(seen) == list(range(7)) and len(turns) == 1
