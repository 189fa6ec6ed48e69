"""A run that diverges ends with a result, at a step, and never with an exception."""

import math
from dataclasses import replace

import pytest
import torch

from train.runs import RECIPE, rows, stop_after, training

EOS = 256


def loss_near(run, levels):
    """Make the training loss of update k (from 0) about `levels[k]` nats: the model expects an EOS that hardly ever comes."""
    forward = run.model.forward

    def expecting_the_end(x):
        logits = forward(x)
        if run.model.training:
            logits = logits * 0
            logits[..., EOS] += levels[run.position.step]
        return logits

    run.model.forward = expecting_the_end
    return run


def test_a_learning_rate_beyond_all_reason_diverges(token_data, tmp_path):
    outcome = training(tmp_path, token_data, recipe=replace(RECIPE, learning_rate=1e30)).run()
    assert outcome.status == "diverged" and outcome.validation is None
    found = rows(tmp_path)
    assert [row["step"] for row in found] == list(range(1, outcome.step + 1))
    assert found[-1]["loss"] is None and found[-1]["gradient_norm"] is None
    assert all(row["loss"] is not None for row in found[:-1])


def test_a_large_learning_rate_diverges_by_staying_high(token_data, tmp_path):
    recipe = replace(RECIPE, steps=60, learning_rate=30.0, divergence_patience=5)
    outcome = training(tmp_path, token_data, recipe=recipe).run()
    losses = [row["loss"] for row in rows(tmp_path)]
    assert outcome.status == "diverged" and outcome.step == len(losses) < 60
    assert all(loss > min(losses[: k + 1]) + 1.0 for k, loss in enumerate(losses) if k >= outcome.step - 5)


HIGH = 20.0
LEVELS = [0.0, HIGH, HIGH, 0.0, HIGH, HIGH, HIGH, HIGH, 0.0, 0.0, 0.0, 0.0]  # three in a row are first had at update 7


@pytest.mark.parametrize(("patience", "step"), [(1, 2), (2, 3), (3, 7), (4, 8)])
def test_it_is_the_update_at_which_patience_ends(token_data, tmp_path, patience, step):
    recipe = replace(RECIPE, divergence_patience=patience)
    outcome = loss_near(training(tmp_path, token_data, recipe=recipe), LEVELS).run()
    assert (outcome.status, outcome.step) == ("diverged", step)
    assert len(rows(tmp_path)) == step


@pytest.mark.parametrize("change", [{"divergence_patience": 5}, {"divergence_margin": 30.0, "divergence_patience": 1}], ids=str)
def test_with_more_patience_or_a_wider_margin_the_run_goes_on(token_data, tmp_path, change):
    run = training(tmp_path, token_data, recipe=replace(RECIPE, **change))
    assert loss_near(run, LEVELS).run().status == "done"


@pytest.mark.parametrize("stop", [2, 5, 6])
def test_minimum_and_streak_survive_a_stop(token_data, tmp_path, stop):
    recipe = replace(RECIPE, divergence_patience=3)
    stopped = loss_near(training(tmp_path, token_data, recipe=recipe, should_stop=stop_after(stop)), LEVELS).run()
    assert stopped.status == "stopped"
    outcome = loss_near(training(tmp_path, token_data, recipe=recipe), LEVELS).run()
    assert (outcome.status, outcome.step) == ("diverged", 7)
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 8))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_touches_no_weight(token_data, tmp_path, broken):
    run = loss_near(training(tmp_path, token_data), [0.0, 0.0, broken])
    weights = []
    run.report = lambda heard: weights.append([p.detach().clone() for p in run.model.parameters()])
    outcome = run.run()
    assert (outcome.status, outcome.step) == ("diverged", 3)
    assert rows(tmp_path)[-1]["loss"] is None
    assert all(torch.equal(before, after) for before, after in zip(weights[1], weights[2], strict=True))


def test_an_update_that_breaks_the_model_shows_in_the_next_loss(token_data, tmp_path):
    """Also when a validation comes in between: its loss is no number, which JSON does not have."""
    run = training(tmp_path, token_data, recipe=replace(RECIPE, validation_every=2))
    run.report = lambda heard: break_at(run, heard, 1)
    outcome = run.run()
    assert (outcome.status, outcome.step) == ("diverged", 2)

    run = training(tmp_path, token_data, recipe=replace(RECIPE, validation_every=2))
    validate = run.model.eval

    def broken_from_here():
        break_at(run, run.position, 2)
        return validate()

    run.model.eval = broken_from_here
    outcome = run.run()
    assert (outcome.status, outcome.step) == ("diverged", 3)
    assert rows(tmp_path)[1]["validation_loss"] is None and rows(tmp_path)[1]["validation_bits_per_byte"] is None


def break_at(run, heard, step):
    """Put a NaN into the model once `step` updates are done."""
    if heard.step == step:
        with torch.no_grad():
            run.model.norm.gain[0] = math.nan


def test_a_last_update_that_breaks_the_model_is_a_divergence_too(token_data, tmp_path):
    run = training(tmp_path, token_data)
    run.report = lambda heard: break_at(run, heard, RECIPE.steps)
    outcome = run.run()
    assert (outcome.status, outcome.step, outcome.validation) == ("diverged", RECIPE.steps, None)
    assert training(tmp_path, token_data).run().status == "diverged"  # killed before the result was written
