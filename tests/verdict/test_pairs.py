import itertools
import math

import numpy as np
import pytest

from depthbench.verdict.pairs import compare, compared_losses
from depthbench.verdict.statistics import difference, estimate, holm, level, weigh
from depthbench.verdict.summary import aggregate
from synthetic import line, losses, row, simulated

FAMILIES, DESIGNS = 1_000, 6
GAIN = difference(0, -1, 5)
PAIRS = list(itertools.combinations(range(DESIGNS), 2))


def families(n, uneven=1.0):
    """Losses [families, designs, shapes, n] of designs that do not differ, with seed effects of their own and shared ones."""
    own = losses(line(-0.01), n, FAMILIES * DESIGNS, uneven=uneven).reshape(FAMILIES, DESIGNS, 5, n)
    return own + losses([0] * 5, n, FAMILIES, sd=0.002, stream=1)[:, None]


def p_values(drawn, weights):
    """Unadjusted p-values [families, pairs] by the paired t test of every pair."""
    apart = np.stack([drawn[:, a] - drawn[:, b] for a, b in PAIRS], axis=1)
    value, error, df = weigh(apart, weights)
    from scipy.stats import t

    return 2 * t.sf(np.abs(value) / error, df)


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("weights", [GAIN, level(5)], ids=["gain", "level"])
def test_without_a_difference_5_in_100_pairs_differ_before_and_as_many_families_after_adjustment(n, weights):
    p = p_values(families(n), weights)
    assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.01)
    wrong = np.mean([holm(family).min() <= 0.05 for family in p])
    assert wrong <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / FAMILIES)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_noise_that_grows_over_the_shapes_calls_few_more_pairs_different(n):
    p = p_values(families(n, uneven=1.5), GAIN)
    assert np.mean(p < 0.05) <= 0.065
    assert np.mean([holm(family).min() <= 0.05 for family in p]) <= 0.075


def as_losses(drawn):
    """[designs, shapes, seeds] as what is compared."""
    return {f"d{i}": {seed: design[:, seed] for seed in range(design.shape[1])} for i, design in enumerate(drawn)}


def test_the_simulated_test_is_the_one_of_the_report():
    drawn = families(3)
    for at in range(3):
        pairs = compare(as_losses(drawn[at]))
        assert [pair.gain.p for pair in pairs] == pytest.approx(p_values(drawn[at : at + 1], GAIN)[0].tolist())
        assert [pair.level_p for pair in pairs] == pytest.approx(holm([pair.level.p for pair in pairs]).tolist())


def test_effects_have_the_sign_of_a_minus_b():
    better = np.stack([losses(line(-0.02), 3), losses(line(0), 3, stream=1) + 0.5])
    (pair,) = compare(as_losses(better))
    assert (pair.a, pair.b, pair.n) == ("d0", "d1", 3)
    assert pair.gain.value == pytest.approx(0.02 * math.log2(12), abs=0.02) and pair.gain_differs
    assert pair.level.value == pytest.approx(-0.5, abs=0.05) and pair.level_differs


def test_a_pair_uses_the_seeds_that_both_have():
    one, other = as_losses(np.stack([losses(line(0), 4), losses(line(0), 4, stream=1)])).values()
    (pair,) = compare({"a": {seed: one[seed] for seed in (0, 1, 2)}, "b": {seed: other[seed] for seed in (1, 2, 3)}})
    apart = np.stack([one[seed] - other[seed] for seed in (1, 2)], axis=1)
    assert pair.n == 2 and pair.gain == estimate(apart, GAIN)


def test_pairs_of_one_seed_have_no_p_and_do_not_count_in_the_adjustment_of_others():
    three = as_losses(np.stack([losses(line(0), 3, stream=i) for i in range(3)]))
    three["d2"] = {0: three["d2"][0]}
    found = {(pair.a, pair.b): pair for pair in compare(three)}
    lone = found["d0", "d2"]
    assert (lone.n, lone.gain.low, lone.gain_p, lone.gain_differs, lone.level_p) == (1, None, None, None, None)
    assert found["d0", "d1"].gain_p == found["d0", "d1"].gain.p  # the only one tested


def test_designs_without_a_common_seed_are_no_pair():
    one = as_losses(losses(line(0), 2)[None])["d0"]
    assert compare({"a": {0: one[0]}, "b": {1: one[1]}}) == ()


def test_only_seeds_at_all_compared_shapes_are_compared():
    rows = [r for r in simulated({"preln": line(0), "hc": line(0)}) if (r.design, r.n_layers, r.seed) != ("hc", 8, 1)]
    found = compared_losses(aggregate(rows))
    assert list(found["preln"]) == [0, 1, 2] and list(found["hc"]) == [0, 2]
    assert found["preln"][1].shape == (5,)


def test_one_depth_compares_nothing():
    assert compared_losses(aggregate([row(), row("hc")])) == {}
