import numpy as np
import pytest

from depthbench.verdict import power_law
from depthbench.verdict.statistics import interval

FOUR = np.array([1e6, 4e6, 16e6, 64e6])
THREE = FOUR[:3]


def means(parameters, floor, at_reference, alpha):
    return floor + at_reference * (parameters / power_law.reference(parameters)) ** -alpha


def noisy(values, n, sd=0.003, stream=0):
    rng = np.random.default_rng(stream)
    return values[:, None] + 0.003 * rng.standard_normal((1, n)) + sd * rng.standard_normal((len(values), n))


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.5])
def test_four_tiers_on_a_law_give_it_back(alpha):
    assert power_law.fit(FOUR, means(FOUR, 2.0, 0.7, alpha)) == pytest.approx([2.0, 0.7, alpha], rel=0.02)


def test_a_floor_below_zero_is_zero():
    falling = means(FOUR, 0, 2.7, 0.1) - np.array([0.02, 0, 0, 0.02])  # bends the way no floor of at least zero does
    floor, at_reference, alpha = power_law.fit(FOUR, falling)
    assert floor == 0 and at_reference == pytest.approx(2.69, abs=0.02) and alpha == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("tiers", [2, 3])
def test_fewer_tiers_give_a_line_in_the_logarithms(tiers):
    parameters = FOUR[:tiers]
    assert power_law.fit(parameters, means(parameters, 0, 2.7, -0.05)) == pytest.approx([0, 2.7, -0.05])


def test_many_laws_are_fitted_at_once():
    both = np.stack([means(FOUR, 2.0, 0.7, 0.3), means(FOUR, 1.0, 1.5, 0.2)])
    assert power_law.fit(FOUR, both)[1] == pytest.approx(power_law.fit(FOUR, both[1]))
    at_twice = power_law.evaluate(power_law.fit(FOUR, both), 2.0)
    assert at_twice == pytest.approx([2 + 0.7 * 2**-0.3, 1 + 1.5 * 2**-0.2], abs=1e-3)


def test_a_step_does_not_determine_alpha():
    assert power_law.at_edge(power_law.fit(FOUR, np.array([3.0, 2.0, 2.0, 2.0]))[2])
    assert not power_law.at_edge(0.3)


@pytest.mark.parametrize(("parameters", "truth"), [(FOUR, (2.0, 0.7, 0.3)), (THREE, (0.0, 2.7, 0.1))], ids=["four", "three"])
@pytest.mark.parametrize("n", [2, 3])
def test_intervals_of_the_curve_and_of_alpha_cover_the_truth(parameters, truth, n):
    hits = []
    for stream in range(40):
        draws = power_law.draw_fits(parameters, noisy(means(parameters, *truth), n, stream=stream))
        beyond = truth[0] + truth[1] * 4 ** -truth[2]
        spans = [(interval(draws[:, 2]), truth[2]), (interval(power_law.evaluate(draws, 4.0)), beyond)]
        hits.append([low <= value <= high for (low, high), value in spans])
    assert np.all(np.mean(hits, axis=0) >= 0.85)


def test_what_is_left_over_is_zero_on_the_law_and_none_where_it_threads_the_tiers():
    assert power_law.left_over(FOUR, means(FOUR, 2.0, 0.7, 0.3)) == pytest.approx(0, abs=1e-3)
    off = means(THREE, 0, 2.7, 0.1) + np.array([0.01, -0.02, 0.01])
    assert power_law.left_over(THREE, off) == pytest.approx(0.0245, abs=0.002)
    assert power_law.left_over(FOUR[:2], means(FOUR[:2], 0, 2.7, 0.1)) is None
