"""The loop: what it computes against plain code, what it writes, and that stopping and continuing changes nothing."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from depthbench import ModelShape, build_model, row_file
from depthbench.data import training_batch
from depthbench.errors import UserError
from depthbench.train import checkpoint, loop
from depthbench.train.checkpoint import checkpoints
from depthbench.train.execution import Execution
from depthbench.train.loop import StepReport, load_trained
from helpers import DESIGNS
from train.runs import IDENTITY, RECIPE, SHAPE, assert_same_run, newest, rows, stop_after, training

KEYS = {"step", "loss", "gradient_norm", "learning_rate", "tokens", "tokens_per_second"}
EVERY_THREE = Execution(checkpoint_steps=3, checkpoint_seconds=0)


def full_batch(model, data, step=0):
    """The loss of a whole batch and its gradients, by plain code."""
    inputs, targets = map(
        torch.from_numpy, training_batch(data, context=SHAPE.context, batch_size=RECIPE.batch_size, seed=3, step=step)
    )
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    return loss.item(), torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("micro_batch_size", [0, 1, 3, 4, 5, 100])
def test_accumulated_gradients_equal_the_full_batch(token_data, tmp_path, micro_batch_size):
    recipe = replace(RECIPE, steps=1, clip_norm=1e9)
    execution = Execution(micro_batch_size=micro_batch_size)
    run = training(tmp_path, token_data, "hc", recipe=recipe, execution=execution, dtype=torch.float64)
    loss, gradients = full_batch(build_model("hc", SHAPE, seed=3).double(), token_data)
    run.run()
    assert rows(tmp_path)[0]["loss"] == pytest.approx(loss, rel=1e-13)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert rows(tmp_path)[0]["gradient_norm"] == pytest.approx(norm, rel=1e-12)
    for (name, parameter), gradient in zip(run.model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-14, msg=name)


def test_gradients_are_clipped_to_the_norm(token_data, tmp_path):
    run = training(tmp_path, token_data, recipe=replace(RECIPE, steps=1, clip_norm=0.01))
    run.run()
    assert rows(tmp_path)[0]["gradient_norm"] > 0.1  # the norm before the clip
    assert math.sqrt(sum(float(p.grad.square().sum()) for p in run.model.parameters())) == pytest.approx(0.01, rel=1e-3)


def test_updates_are_those_of_a_plain_adamw_loop(token_data, tmp_path):
    run = training(tmp_path, token_data, dtype=torch.float64)
    outcome = run.run()
    model = build_model("preln", SHAPE, seed=3).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(RECIPE.steps):
        optimizer.param_groups[0]["lr"] = RECIPE.learning_rate_at(step)
        loss, gradients = full_batch(model, token_data, step)
        assert rows(tmp_path)[step]["loss"] == pytest.approx(loss, rel=1e-9)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert (outcome.status, outcome.step) == ("done", RECIPE.steps)
    for (name, parameter), wanted in zip(run.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-7, atol=1e-9, msg=name)


def test_rows_hold_what_they_should_and_every_step_once(token_data, tmp_path):
    heard = []
    training(tmp_path, token_data, report=heard.append).run()
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row.keys() == KEYS for row in found)
    assert [row["step"] for row in found] == list(range(1, RECIPE.steps + 1))
    assert [row["tokens"] for row in found] == [96 * step for step in range(1, RECIPE.steps + 1)]
    assert [row["learning_rate"] for row in found] == [RECIPE.learning_rate_at(step) for step in range(RECIPE.steps)]
    assert found[0]["loss"] == pytest.approx(math.log(257), rel=0.01) and found[-1]["loss"] < found[0]["loss"] - 0.3
    assert all(row["tokens_per_second"] > 0 and row["gradient_norm"] > 0 for row in found)
    assert heard == [StepReport(row["step"], RECIPE.steps, row["loss"], row["tokens_per_second"]) for row in found]


def test_validation_every_few_updates_adds_to_rows_and_changes_nothing_else(token_data, tmp_path):
    outcome = training(tmp_path / "a", token_data, recipe=replace(RECIPE, validation_every=4)).run()
    training(tmp_path / "b", token_data).run()
    keys = {"validation_loss", "validation_bits_per_byte"}
    assert [row["step"] for row in rows(tmp_path / "a") if row.keys() >= keys] == [4, 8]  # the last one is in the outcome
    assert rows(tmp_path / "b") == [{k: v for k, v in row.items() if k not in keys} for row in rows(tmp_path / "a")]
    assert outcome.validation.loss < rows(tmp_path / "a")[7]["validation_loss"] < rows(tmp_path / "a")[3]["validation_loss"]


@pytest.mark.parametrize("design", DESIGNS)
def test_a_run_that_stops_and_continues_equals_one_that_does_not(token_data, tmp_path, design):
    recipe = replace(RECIPE, validation_every=5)
    whole = training(tmp_path / "whole", token_data, design, recipe=recipe).run()
    for updates, step in ((4, 4), (3, 7)):
        stopped = training(tmp_path / "parts", token_data, design, recipe=recipe, should_stop=stop_after(updates)).run()
        assert (stopped.status, stopped.step, stopped.validation) == ("stopped", step, None)
    parts = training(tmp_path / "parts", token_data, design, recipe=recipe).run()
    assert replace(parts, seconds=0) == replace(whole, seconds=0)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_two_runs_are_equal_and_another_seed_is_another_run(token_data, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        training(tmp_path / name, token_data, "mhc", seed=seed).run()
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert rows(tmp_path / "a")[0]["loss"] != rows(tmp_path / "c")[0]["loss"]  # of the same weights on other data


def test_asked_to_stop_after_the_last_update_it_finishes(token_data, tmp_path):
    assert training(tmp_path, token_data, should_stop=stop_after(RECIPE.steps)).run().status == "done"


def test_a_finished_run_only_validates_again(token_data, tmp_path):
    first = training(tmp_path, token_data).run()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = training(tmp_path, token_data, report=lambda _: pytest.fail("trained")).run()
    assert (again.status, again.validation) == ("done", first.validation)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_checkpoints_by_steps_by_time_and_never(token_data, tmp_path, monkeypatch):
    saved = []

    def steps_saved(name, execution):
        saved.clear()
        training(tmp_path / name, token_data, execution=execution).run()
        return saved.copy()

    monkeypatch.setattr(loop, "save_checkpoint", lambda folder, identity, position, *_: saved.append(position.step))
    assert steps_saved("steps", Execution(checkpoint_steps=5, checkpoint_seconds=0)) == [5, 10, 12]
    assert steps_saved("time", Execution(checkpoint_seconds=1e-9)) == list(range(1, 13))
    assert steps_saved("never", Execution(checkpoint_seconds=0)) == [12]


@pytest.mark.parametrize("damage", ["newest", "all"])
def test_a_damaged_checkpoint_costs_time_and_nothing_else(token_data, tmp_path, damage):
    training(tmp_path / "whole", token_data, execution=EVERY_THREE).run()
    training(tmp_path / "hurt", token_data, execution=EVERY_THREE, should_stop=stop_after(10)).run()
    hurt = checkpoints(tmp_path / "hurt" / "checkpoint")
    assert [path.name[11:15] for path in hurt] == ["0010", "0009"]
    for path in hurt[: 1 if damage == "newest" else 2]:
        path.write_bytes(path.read_bytes()[:-1])
    said = []
    run = training(tmp_path / "hurt", token_data, execution=EVERY_THREE, notify=said.append)
    run.run()
    assert len(said) == (1 if damage == "newest" else 2)
    assert_same_run(tmp_path / "hurt", tmp_path / "whole")
    assert [path.name[11:15] for path in checkpoints(tmp_path / "hurt" / "checkpoint")] == ["0012", "0009"]


@pytest.mark.parametrize("stop_again", [4, 11])
def test_lost_metrics_cost_time_and_nothing_else(token_data, tmp_path, stop_again):
    """The passed-over checkpoint must not come back to life when the file has grown again past the byte it counts on."""
    training(tmp_path / "whole", token_data, execution=EVERY_THREE).run()
    hurt = tmp_path / "hurt"
    training(hurt, token_data, execution=Execution(checkpoint_steps=7, checkpoint_seconds=0), should_stop=stop_after(10)).run()
    metrics = hurt / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:3]))
    never = Execution(checkpoint_seconds=0)
    said = []
    with pytest.raises(KeyboardInterrupt):  # as good as a kill: nothing is saved
        training(hurt, token_data, execution=never, notify=said.append, report=interrupt_at(stop_again)).run()
    assert len(said) == 2 and "its metrics end at byte" in said[0]
    assert len(rows(hurt)) == stop_again
    training(hurt, token_data, execution=never).run()
    assert_same_run(hurt, tmp_path / "whole")


def interrupt_at(step):
    def report(heard):
        if heard.step == step:
            raise KeyboardInterrupt

    return report


def test_a_row_cut_in_half_is_cut_off(token_data, tmp_path):
    training(tmp_path / "whole", token_data).run()
    training(tmp_path / "cut", token_data, should_stop=stop_after(6)).run()
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "loss": 5.1}\n{"step": 8, "lo')
    training(tmp_path / "cut", token_data).run()
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


class Overtaken(Exception):
    """As a guard raises it when another attempt has taken the run over."""


def overtaken_when(condition):
    def guard():
        if condition():
            raise Overtaken

    return guard


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_guarded_run_is_the_same_run(token_data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "GUARD_SECONDS", 0)
    asked = []
    training(tmp_path / "plain", token_data, execution=EVERY_THREE).run()
    training(tmp_path / "guarded", token_data, execution=EVERY_THREE, guard=lambda: asked.append(len(asked))).run()
    assert_same_run(tmp_path / "guarded", tmp_path / "plain")
    assert len(asked) > RECIPE.steps  # before each row, and each checkpoint


@pytest.mark.parametrize("rows_before", [0, 4, 5, RECIPE.steps])
def test_a_run_that_was_taken_over_writes_nothing_more(token_data, tmp_path, monkeypatch, rows_before):
    """From a start, from a row, from a checkpoint in the middle or the last one."""
    monkeypatch.setattr(loop, "GUARD_SECONDS", 0)
    heard, seen = [], {}

    def overtaken():
        if len(heard) == rows_before:
            seen.update(seen or contents(tmp_path))
            return True
        return False

    execution = Execution(checkpoint_steps=4, checkpoint_seconds=0)
    with pytest.raises(Overtaken):
        training(tmp_path, token_data, execution=execution, report=heard.append, guard=overtaken_when(overtaken)).run()
    assert contents(tmp_path) == seen
    assert len(seen) == {0: 0, 4: 1, 5: 2, 12: 3}[rows_before]


def test_a_guard_is_not_asked_at_every_row(token_data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "GUARD_SECONDS", 1e9)
    asked = []
    execution = Execution(checkpoint_seconds=0)
    training(tmp_path, token_data, execution=execution, guard=lambda: asked.append(0)).run()
    assert len(asked) < RECIPE.steps


def test_a_new_attempt_writes_a_new_file_and_a_stale_one_into_the_old(token_data, tmp_path):
    training(tmp_path / "whole", token_data).run()
    run = tmp_path / "run"
    training(run, token_data, should_stop=stop_after(6)).run()
    with open(run / "metrics.jsonl", "ab") as stale:
        training(run, token_data, should_stop=stop_after(3)).run()
        stale.write(b"late\n")
        stale.flush()
        training(run, token_data).run()
    assert_same_run(run, tmp_path / "whole")


def test_a_kill_while_the_metrics_are_copied_leaves_the_old_ones(token_data, tmp_path, monkeypatch):
    training(tmp_path / "whole", token_data).run()
    run = tmp_path / "run"
    training(run, token_data, should_stop=stop_after(6)).run()
    before = contents(run)
    (run / ".metrics.jsonl.0123.part").write_bytes(b'{"step": 1, "lo')  # what a kill leaves

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(row_file.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        training(run, token_data).run()
    monkeypatch.undo()
    assert contents(run) == before
    training(run, token_data).run()
    assert_same_run(run, tmp_path / "whole")
    assert not list(run.glob(".*"))


def test_a_checkpoint_that_counts_on_rows_of_another_attempt_is_passed_over(token_data, tmp_path):
    training(tmp_path / "whole", token_data, execution=EVERY_THREE).run()
    run, said = tmp_path / "run", []
    training(run, token_data, execution=EVERY_THREE, should_stop=stop_after(10)).run()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[9] = b" " + lines[9]  # as long or longer, and cut elsewhere: as if written by a machine of another speed
    (run / "metrics.jsonl").write_bytes(b"".join(lines))
    training(run, token_data, execution=EVERY_THREE, notify=said.append).run()
    assert len(said) == 1 and "do not end with the row of step 10" in said[0]
    assert_same_run(run, tmp_path / "whole")


def test_a_checkpoint_of_another_cell_is_refused_before_anything_changes(token_data, tmp_path):
    training(tmp_path, token_data, should_stop=stop_after(6)).run()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="belongs to cell"):
        training(tmp_path, token_data, identity="2e" * 32).run()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_disk_that_fills_up_while_training_costs_only_the_time_since_the_last_checkpoint(token_data, tmp_path, monkeypatch):
    training(tmp_path / "whole", token_data, execution=EVERY_THREE).run()
    real, calls = checkpoint.save_file, []

    def full_at_the_third(tensors, path, metadata):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(tensors, path, metadata)

    monkeypatch.setattr(checkpoint, "save_file", full_at_the_third)
    with pytest.raises(UserError, match="No space left on device"):
        training(tmp_path / "full", token_data, execution=EVERY_THREE).run()
    assert newest(tmp_path / "full").name == "step-0000000006.safetensors"
    training(tmp_path / "full", token_data, execution=EVERY_THREE).run()
    assert_same_run(tmp_path / "full", tmp_path / "whole")


def test_the_trained_weights_are_those_of_the_last_update_or_refused(token_data, tmp_path):
    run = training(tmp_path, token_data, execution=EVERY_THREE)
    run.run()
    model = load_trained(build_model("preln", SHAPE), tmp_path, IDENTITY, RECIPE.steps)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), run.model.parameters(), strict=True))
    newest(tmp_path).write_bytes(b"")  # the one of step 9 is still good, and not what was asked for
    with pytest.raises(UserError, match="is damaged or was changed"):
        load_trained(build_model("preln", SHAPE), tmp_path, IDENTITY, RECIPE.steps)
    with pytest.raises(UserError, match="train the run to the end"):
        load_trained(build_model("preln", SHAPE), tmp_path / "nothing", IDENTITY, RECIPE.steps)


@pytest.mark.parametrize(
    ("shape", "recipe", "message"),
    [
        (replace(SHAPE, vocab_size=256), RECIPE, "the tokens have a vocabulary of 257, the model one of 256"),
        (replace(SHAPE, context=10**7), RECIPE, "corpus too small"),
        (SHAPE, replace(RECIPE, validation_windows=10**7), "10000000 validation windows asked for"),
    ],
)
def test_data_that_does_not_fit_the_model_is_refused(token_data, tmp_path, shape, recipe, message):
    with pytest.raises(UserError, match=message) as caught:
        training(tmp_path, token_data, shape=shape, recipe=recipe)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_larger_vocabulary_than_that_of_the_data_is_fine(token_data, tmp_path):
    shape = ModelShape(1, 16, 4, vocab_size=300, context=16)
    assert training(tmp_path, token_data, shape=shape, recipe=replace(RECIPE, steps=1)).run().status == "done"
