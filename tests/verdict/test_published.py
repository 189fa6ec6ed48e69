import numpy as np
import pytest
from scipy.stats import spearmanr

from depthbench.verdict.published import LOSSES, agreement, published_gains, published_points
from depthbench.verdict.rows import DESIGNS
from depthbench.verdict.summary import aggregate
from depthbench.verdict.verdicts import judge
from synthetic import line, row, simulated


def agreed(means, n=3, extra=()):
    summary = aggregate([*simulated(means, n=n), *extra])
    return agreement(summary, judge(summary))


def slopes(designs, factor=1.0):
    """Means whose depth gains are in the published order."""
    gains = published_gains()
    return {design: line(-factor * gains[design] - 1e-4 * i) for i, design in enumerate(designs)}


def test_published_numbers():
    points = {(point.design, point.n_layers): point for point in published_points()}
    assert len(points) == 54 and points["hc", 70].loss == 2.682 and points["moda", 16].aspect_ratio == 76
    assert set(LOSSES) == set(DESIGNS)
    assert published_gains() == pytest.approx(
        {
            "preln": -0.023,
            "sandwich": -0.001,
            "lns": 0.010,
            "deepnorm": -0.008,
            "keel": 0.006,
            "hc": 0.029,
            "mhc": -0.001,
            "attnres": 0.033,
            "attnres_block": 0.004,
            "moda": -0.027,
        }
    )


def test_the_same_order_agrees_and_the_opposite_disagrees():
    designs = ("preln", "hc", "attnres", "deepnorm", "lns")
    same, opposite = agreed(slopes(designs)), agreed(slopes(designs, -1))
    assert same.spearman == pytest.approx(1) and same.n == 3 and same.low > 0.5 and same.high == pytest.approx(1)
    assert opposite.spearman < -0.7
    assert "Spearman +1.00 over 5 designs (95 % interval" in same.sentence and "M = 2 to 24" in same.sentence


def test_the_correlation_is_scipys_ties_included():
    found = agreed(slopes(DESIGNS))
    ours, theirs = [d.gain for d in found.designs], [d.published_gain for d in found.designs]
    assert found.spearman == pytest.approx(spearmanr(ours, theirs).statistic) and len(set(theirs)) == 9
    assert found.low < found.spearman and np.isfinite(found.high)


def test_few_designs_are_not_read_much_into():
    assert "one in 6 orders" in agreed(slopes(("preln", "hc", "attnres"))).sentence
    two = agreed(slopes(("preln", "hc")))
    assert two.spearman is two.low is None and "an order needs 3" in two.sentence


def test_one_seed_has_no_interval():
    found = agreed(slopes(DESIGNS), n=1)
    assert found.low is None and found.n == 1 and "one seed, so no interval" in found.sentence


def test_options_and_designs_of_ones_own_are_not_compared():
    mine = [row("mine.py:Mine", (r.n_layers, r.d_model), r.loss, seed=r.seed) for r in simulated({"hc": line(0)})]
    other = [row("hc", (r.n_layers, r.d_model), r.loss, seed=r.seed, options="streams=2") for r in mine]
    found = agreed(slopes(("preln", "hc", "attnres")), extra=[*mine, *other])
    assert [design.label for design in found.designs] == ["preln", "hc", "attnres"]
    summary = aggregate(mine)
    assert agreement(summary, judge(summary)) is None
