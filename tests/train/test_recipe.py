"""The schedule against the formula of its specification, and every value that a recipe refuses."""

import math

import pytest

from depthbench.errors import UserError
from depthbench.train.recipe import Recipe, steps_for

BASE = {"steps": 10, "batch_size": 4, "learning_rate": 0.002}
WHOLE = ("steps", "batch_size", "divergence_patience", "validation_every", "validation_windows")
REAL = (
    *("learning_rate", "adam_eps", "clip_norm", "divergence_margin", "warmup_fraction", "final_fraction"),
    *("beta1", "beta2", "weight_decay"),
)


def scheduled(peak, steps):
    """Warm-up and cosine by running sums and a half-angle, with a warm-up length from whole numbers."""
    warmup = max(1, (steps + 5) // 10)
    rates = [peak / warmup * count for count in range(1, warmup + 1)]
    rest = steps - warmup
    rates += [peak * (1 - 0.9 * math.sin(math.pi * k / (2 * rest)) ** 2) for k in range(1, rest + 1)]
    return rates


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9, 10, 14, 15, 16, 25, 99, 100, 305, 3800, 7600])
def test_the_schedule_is_linear_warmup_and_a_cosine_to_a_tenth(steps):
    recipe = Recipe(steps, 4, 0.002)
    assert [recipe.learning_rate_at(step) for step in range(steps)] == pytest.approx(scheduled(0.002, steps), rel=1e-12)


def test_the_warmup_rounds_half_up_at_every_length():
    assert all(Recipe(steps, 1, 1.0).warmup_steps == max(1, (steps + 5) // 10) for steps in range(1, 20_001))


@pytest.mark.parametrize("steps", [2, 3, 10, 15, 1000])
def test_the_last_update_uses_a_tenth_of_the_peak_and_the_last_of_the_warmup_the_peak(steps):
    recipe = Recipe(steps, 4, 0.002)
    assert recipe.learning_rate_at(steps - 1) == pytest.approx(0.0002, rel=1e-12)
    assert recipe.learning_rate_at(recipe.warmup_steps - 1) == 0.002
    assert min(recipe.learning_rate_at(step) for step in range(steps)) > 0


def test_no_warmup_fraction_still_warms_up_for_one_update():
    assert Recipe(10, 4, 0.002, warmup_fraction=0.0).learning_rate_at(0) == 0.002


def test_the_defaults_are_the_protocol():
    recipe = Recipe(**BASE)
    assert (recipe.beta1, recipe.beta2, recipe.adam_eps, recipe.weight_decay, recipe.clip_norm) == (0.9, 0.95, 1e-8, 0.1, 1.0)
    assert (recipe.decay, recipe.warmup_fraction, recipe.final_fraction) == ("all", 0.1, 0.1)


@pytest.mark.parametrize("name", [*WHOLE, *REAL])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1])
def test_what_is_not_finite_or_negative_is_refused(name, value):
    with pytest.raises(UserError, match=f"^{name} must be .*, got {value}") as caught:
        Recipe(**BASE | {name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["steps", "batch_size", "divergence_patience", "learning_rate", "adam_eps", "clip_norm"])
def test_zero_is_refused_where_it_makes_no_sense(name):
    with pytest.raises(UserError, match=f"^{name} must be .*, got 0"):
        Recipe(**BASE | {name: 0})


@pytest.mark.parametrize("name", ["weight_decay", "validation_every", "validation_windows", "warmup_fraction", "final_fraction"])
def test_zero_is_fine_elsewhere(name):
    assert getattr(Recipe(**BASE | {name: 0}), name) == 0


@pytest.mark.parametrize("name", ["warmup_fraction", "final_fraction", "beta1", "beta2"])
def test_fractions_stay_below_one(name):
    with pytest.raises(UserError, match=rf"^{name} must be in \[0, 1\), got 1"):
        Recipe(**BASE | {name: 1.0})


@pytest.mark.parametrize("name", WHOLE)
def test_counts_are_whole_numbers(name):
    with pytest.raises(UserError, match=f"^{name} must be a whole number, got 2.5"):
        Recipe(**BASE | {name: 2.5})


@pytest.mark.parametrize(("name", "right"), [("decay", "'all' or 'matrices'"), ("precision", "'fp32' or 'bf16'")])
def test_unknown_words_are_refused(name, right):
    with pytest.raises(UserError, match=f"^{name} must be {right}, got 'fp8'"):
        Recipe(**BASE | {name: "fp8"})


def test_steps_from_tokens_per_parameter():
    assert steps_for(20, 405e6, 512, 2048) == 7725  # 8.1e9 tokens in batches of 1,048,576
    assert steps_for(0.5, 1000, 10, 10) == 5
    assert steps_for(0.001, 10, 512, 2048) == 1


@pytest.mark.parametrize("value", [0, -20, math.nan, math.inf])
def test_tokens_per_parameter_must_be_positive(value):
    with pytest.raises(UserError, match="tokens_per_parameter must be above 0"):
        steps_for(value, 1000, 4, 16)
