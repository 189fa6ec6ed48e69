from collections import Counter

import numpy as np
import pytest

from depthbench.verdict.decide import FLAT, IMPROVES, MARGIN, UNDECIDED, WORSE, best_inside, decide, doubts
from depthbench.verdict.statistics import estimate, slope_weights
from synthetic import DEPTHS, line, losses

COUNT = 1_000


def verdicts(means, n, **noise):
    found = Counter(decide(one, DEPTHS).verdict for one in losses(means, n, COUNT, **noise))
    return {verdict: count / COUNT for verdict, count in found.items()}


@pytest.mark.parametrize("n", [2, 3, 5])
def test_without_a_trend_depth_is_seldom_said_to_matter(n):
    found = verdicts(line(0), n)
    assert found.get(IMPROVES, 0) + found.get(WORSE, 0) < 0.05 + 4 * 0.007
    assert sum(share for verdict, share in found.items() if verdict.startswith("best")) < 0.02
    assert found[FLAT] > 0.8


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_slope_far_beyond_the_noise_is_found_with_its_sign(n):
    assert verdicts(line(-0.01), n)[IMPROVES] > 0.97 and verdicts(line(0.01), n)[WORSE] > 0.97


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("sd", [0.002, 0.006, 0.012])
def test_a_slope_at_the_margin_is_not_called_flat(n, sign, sd):
    found = verdicts(line(sign * MARGIN), n, sd=sd)
    assert found.get(FLAT, 0) <= 0.05
    assert found.get(WORSE if sign < 0 else IMPROVES, 0) <= 0.025 + 4 * 0.005


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize(("at", "depth"), [(1, 4), (2, 8), (3, 12)])
def test_a_depth_better_than_both_ends_is_found(n, at, depth):
    means = np.array(line(-0.002))
    means[at] -= 0.04
    assert verdicts(means, n)[f"best at M = {depth}"] > 0.95


def test_noise_hides_what_few_seeds_cannot_show_and_it_is_said_how_many_could():
    found = decide(losses(line(-0.002), 2, sd=0.02), DEPTHS)
    assert found.verdict == UNDECIDED and found.needed_seeds > 2 and f"about {found.needed_seeds} seeds" in found.reason


def test_one_seed_gives_no_verdict():
    found = decide(losses(line(-1), 1), DEPTHS)
    assert found.verdict is None and "One seed" in found.reason


def test_two_shapes_have_no_depth_between_them():
    two = losses([3.0, 2.9], 3)
    assert best_inside(two) is None and decide(two, (2, 8)).verdict == IMPROVES


def test_the_margin_is_an_option_and_named():
    one = losses(line(0), 3)
    assert decide(one, DEPTHS, margin=0.05).verdict == FLAT and "±0.05" in decide(one, DEPTHS, margin=0.05).reason
    assert decide(one, DEPTHS, margin=0.0001).verdict == UNDECIDED


def test_doubts_are_notes_in_words():
    def notes(one):
        return " ".join(doubts(one, DEPTHS, estimate(one, slope_weights(DEPTHS), resample=True)))

    assert notes(losses(line(-0.01), 3)) == ""
    assert "noise differs between shapes" in notes(losses(line(0), 5, uneven=100, stream=1))
    tilt = np.outer(np.log2(DEPTHS), [-0.02, 0.01, 0.03, -0.01])
    assert "Slopes differ between seeds" in notes(losses(line(0), 4) + tilt)
    assert "do not lie on one line" in notes(losses(np.array(line(0)) - [0, 0.02, 0.03, 0.02, 0], 3))
