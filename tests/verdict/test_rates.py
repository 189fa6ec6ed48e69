"""The choice of a learning rate: seeds shared, divergence, edges, the parabola and the next value."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthbench.verdict.rates import RateChoice, choose_rate, next_rate


def single(**losses):
    return choose_rate({float(rate.replace("_", ".")[1:]): {0: loss} for rate, loss in losses.items()})


def test_the_lowest_loss_is_chosen_and_the_edge_named():
    assert single(r1=2.0, r2=1.0, r4=3.0).chosen == 2 and single(r1=2.0, r2=1.0, r4=3.0).edge == ""
    assert (single(r1=1.0, r2=2.0).chosen, single(r1=1.0, r2=2.0).edge) == (1, "low")
    assert (single(r1=2.0, r2=1.0).chosen, single(r1=2.0, r2=1.0).edge) == (2, "high")
    assert (single(r1=2.0).chosen, single(r1=2.0).edge) == (1, "")  # one rate is no search
    assert choose_rate({}) == RateChoice((), None, "")


def test_of_equal_losses_the_lower_rate_is_taken():
    assert single(r1=3.0, r2=1.0, r4=1.0, r8=3.0).chosen == 2


def test_a_diverged_rate_is_worse_than_any_and_bounds_the_search():
    found = single(r1=9.0, r2=8.0, r4=None)
    assert (found.chosen, found.edge, found.refined) == (2, "", None)
    assert single(r1=None, r2=None) == single(r1=None, r2=None) and single(r1=None, r2=None).chosen is None
    assert single(r1=None, r2=None).edge == "low"


def test_one_diverged_seed_is_enough():
    assert choose_rate({1.0: {0: 2.0, 1: 2.0}, 2.0: {0: 1.0, 1: None}}).chosen == 1


def test_rates_are_compared_on_the_seeds_they_share():
    # seed 1 is luckier; the rate that also has it must not look better for that
    found = choose_rate({1.0: {0: 2.0}, 2.0: {0: 2.1, 1: 1.0}, 4.0: {0: 2.2}})
    assert found.chosen == 1 and [item.loss for item in found.tried] == [2.0, 2.1, 2.2]
    assert [item.n_seeds for item in found.tried] == [1, 2, 1]


def test_without_a_shared_seed_means_are_compared():
    assert choose_rate({1.0: {0: 2.0}, 2.0: {1: 1.0, 2: 2.0}}).chosen == 2


@given(
    optimum=st.floats(-1.9, 1.9),
    curvature=st.floats(0.01, 10),
    left=st.floats(0.3, 2.0),
    right=st.floats(0.3, 2.0),
    c=st.floats(-3, 3),
)
def test_the_parabola_is_recovered(optimum, curvature, left, right, c):
    at = [-left, 0.0, right]
    losses = [curvature * (x - optimum) ** 2 + c for x in at]
    if not losses[1] < min(losses[0], losses[2]) - 1e-6:
        return
    found = choose_rate({1e-3 * math.exp(x): {0: loss} for x, loss in zip(at, losses, strict=True)})
    assert math.log(found.refined / 1e-3) == pytest.approx(optimum, abs=1e-6)
    assert found.refined_loss == pytest.approx(c, abs=1e-6)


def test_three_equal_losses_have_no_vertex():
    found = choose_rate({1.0: {0: 1.5}, 2.0: {0: 1.0}, 4.0: {0: 1.0}, 8.0: {0: 1.0}})
    assert found.chosen == 2 and 2 < found.refined < 4
    assert single(r1=1.0, r2=1.0, r4=1.0).edge == "low"


@pytest.mark.parametrize(
    ("grid", "side", "wanted"),
    [
        ((5e-4, 1e-3, 2e-3, 5e-3), "high", 1e-2),
        ((5e-4, 1e-3, 2e-3, 5e-3), "low", 2e-4),
        ((1e-3, 2e-3), "low", 5e-4),
        ((2e-3, 5e-3, 1e-2), "high", 2e-2),
        ((2e-3, 5e-3), "low", 1e-3),
        ((3e-3, 6e-3, 1.2e-2), "high", 2.4e-2),
        ((3e-3, 6e-3, 1.2e-2), "low", 1.5e-3),
        ((1e-3, 3e-3, 9e-3), "high", 2.7e-2),
    ],
)
def test_a_grid_is_widened_in_its_own_steps(grid, side, wanted):
    assert next_rate(grid, side) == wanted
