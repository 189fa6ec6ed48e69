import math

import numpy as np
import pytest
from scipy import stats

from depthbench.verdict import statistics as st
from synthetic import DEPTHS, line, losses

SLOPE = st.slope_weights(DEPTHS)
GAIN = st.difference(0, -1, len(DEPTHS))
TRUE = -0.01
TRUTH = {"slope": (SLOPE, TRUE), "gain": (GAIN, -TRUE * math.log2(12)), "level": (st.level(5), float(np.mean(line(TRUE))))}
CLOSE = 4 * math.sqrt(0.05 * 0.95 / 20_000)  # four standard errors of a share of 20,000


def covered(drawn, weights, truth):
    value, error, df = st.weigh(drawn, weights)
    return float(np.mean(np.abs(value - truth) <= st.quantile(0.975, df) * error))


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("what", TRUTH)
def test_intervals_cover_the_truth_95_times_in_100(n, what):
    assert covered(losses(line(TRUE), n, 20_000), *TRUTH[what]) == pytest.approx(0.95, abs=CLOSE)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_noise_that_grows_by_half_over_the_shapes_costs_little(n):
    drawn = losses(line(TRUE), n, 20_000, uneven=1.5)
    assert covered(drawn, *TRUTH["slope"]) > 0.94 and covered(drawn, *TRUTH["gain"]) > 0.935


@pytest.mark.parametrize(("n", "at_most"), [(2, 0.52), (3, 0.78), (5, 0.87)])
def test_resampling_seeds_would_miss_far_more_than_5_in_100(n, at_most):
    """The percentile bootstrap over seeds, which is not used, and why."""
    weights, truth = TRUTH["gain"]
    per_seed = np.einsum("k,skn->sn", weights, losses(line(TRUE), n, 1_000))
    again = per_seed[:, np.random.default_rng(0).integers(0, n, (1_000, n))].mean(axis=2)
    low, high = np.quantile(again, [0.025, 0.975], axis=1)
    assert np.mean((low <= truth) & (truth <= high)) < at_most


@pytest.mark.parametrize("n", [2, 3])
def test_resampled_residuals_agree_with_the_t_interval(n):
    found = [st.estimate(one, SLOPE, resample=True) for one in losses(line(TRUE), n, 200)]
    assert np.mean([item.bootstrap[0] <= TRUE <= item.bootstrap[1] for item in found]) == pytest.approx(0.95, abs=0.05)
    widths = [(item.bootstrap[1] - item.bootstrap[0]) / (item.high - item.low) for item in found]
    assert np.median(widths) == pytest.approx(1, abs=0.15)


def test_a_slope_is_that_of_least_squares_whatever_seeds_add():
    one = losses(line(TRUE), 3)
    found = st.estimate(one + np.array([0.5, -0.2, 3.0]), SLOPE)
    assert found.value == pytest.approx(stats.linregress(np.log2(DEPTHS), one.mean(axis=1)).slope)
    assert found.low == pytest.approx(st.estimate(one, SLOPE).low) and found.df == 8 and found.n == 3


def test_two_shapes_give_the_paired_t_test():
    one = losses([3.0, 2.99], 4)
    expected = stats.ttest_rel(one[0], one[1])
    found = st.estimate(one, st.difference(0, -1, 2))
    assert found.p == pytest.approx(expected.pvalue) and found.df == 3
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_a_level_is_tested_over_seeds():
    apart = losses(line(TRUE), 4) - losses(line(TRUE), 4, stream=1)
    expected = stats.ttest_1samp(apart.mean(axis=0), 0)
    assert st.estimate(apart, st.level(5)).p == pytest.approx(expected.pvalue)


def test_one_seed_has_a_value_and_nothing_else():
    assert st.estimate(np.array([[3.0], [2.9]]), st.difference(0, -1, 2)) == st.Estimate(pytest.approx(0.1), 1)


def test_too_few_residuals_are_not_resampled():
    assert st.estimate(losses([3, 2], 3), st.difference(0, -1, 2), resample=True).bootstrap is None


def test_noise_below_rounding_makes_no_number_infinite():
    exact = np.array([[3.0, 3.004], [2.9, 2.904], [2.8, 2.804]])
    found = st.estimate(exact, st.slope_weights((2, 4, 8)), resample=True)
    assert found.value == pytest.approx(-0.1) and found.high < 0 and found.p < 1e-6
    assert st.estimate(exact * 0, st.slope_weights((2, 4, 8))).p == 1


def test_holm_by_hand():
    assert st.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert st.holm([0.9, 0.8]).tolist() == [1, 1] and st.holm([]).size == 0


def test_draws_spread_as_the_interval_does():
    one = losses(line(TRUE), 3)
    draws = st.draw_means(one[None], 40_000)[:, 0] @ SLOPE
    found = st.estimate(one, SLOPE)
    assert st.interval(draws) == pytest.approx((found.low, found.high), abs=0.03 * (found.high - found.low))
    assert not np.array_equal(st.draw_means(one[None], 10), st.draw_means(one[None], 10, stream=1))


def test_draws_keep_the_noise_that_designs_share():
    shared, own = losses(line(TRUE), 5), losses(line(TRUE), 5, sd=0.001, stream=1)
    draws = st.draw_means(np.stack([shared, shared + own - 3]))
    gains = draws[..., 0] - draws[..., -1]
    assert np.corrcoef(gains.T)[0, 1] > 0.9


def test_unequal_noise_is_found_and_equal_noise_seldom_doubted():
    assert np.mean([st.equal_variance(one) < 0.05 for one in losses(line(0), 5, 200, uneven=30)]) > 0.6
    assert np.mean([st.equal_variance(one) < 0.05 for one in losses(line(0), 3, 500)]) < 0.06
    assert st.equal_variance(losses([3, 2], 3)) is None
    assert st.equal_variance(np.full((5, 3), 3.0)) is None


def test_slopes_that_differ_between_seeds_are_found():
    tilted = losses(line(0), 4) + np.outer(np.log2(DEPTHS), [-0.02, 0.01, 0.03, -0.01])
    assert st.equal_slopes(tilted, SLOPE) < 0.01
    doubts = [st.equal_slopes(one, SLOPE) < 0.05 for one in losses(line(TRUE), 3, 1_000)]
    assert np.mean(doubts) == pytest.approx(0.05, abs=0.03)


def test_a_bend_is_found():
    bent = np.array(line(0)) - [0, 0.01, 0.02, 0.01, 0]
    assert st.straight(losses(bent, 3), DEPTHS) < 0.01
    assert np.mean([st.straight(one, DEPTHS) < 0.05 for one in losses(line(TRUE), 3, 1_000)]) == pytest.approx(0.05, abs=0.03)
    assert st.straight(losses([3, 2], 3), (2, 4)) is None


def test_the_seeds_needed_would_mostly_do():
    sigma, reach = 0.004, 0.0015
    n = st.seeds_needed(reach, sigma, SLOPE, more_than=2)
    value, error, df = st.weigh(losses(line(reach), n, 4_000, sd=sigma), SLOPE)
    assert np.mean(value > st.quantile(0.975, df) * error) == pytest.approx(0.8, abs=0.06)
    assert st.seeds_needed(1e-6, 1.0, SLOPE, more_than=2) is None
