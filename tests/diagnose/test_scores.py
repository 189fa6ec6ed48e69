"""Scores against their definitions, on all ten designs; and models whose scores are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from depthbench.diagnose import scores
from depthbench.diagnose.ours import OurSubject
from depthbench.errors import UserError
from diagnose import literal
from helpers import DESIGNS, GQA, random_model, tokens

SHAPE = replace(GQA, n_layers=4, context=5)
TOLERANCE = 1e-9


def passes_of(model, windows):
    return OurSubject(model, precision="fp64").begin(windows)


def score(swaps):
    whole = swaps.loss.mean()
    return np.abs(swaps.swapped.mean(axis=0) - whole) / whole


@pytest.fixture(params=DESIGNS, scope="module")
def case(request):
    model = random_model(request.param, SHAPE).eval()
    windows = tokens(SHAPE, batch=3)
    with torch.no_grad():
        return request.param, model, windows, passes_of(model, windows)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def test_angular_distance(case):
    design, model, windows, passes = case
    np.testing.assert_allclose(scores.angular(passes).mean(0), literal.angular(design, model, windows), atol=1e-7)


@pytest.mark.parametrize("together", [1, 40, 10**6])
def test_causal_score_and_pruning_under_every_rule(case, together):
    design, model, windows, passes = case
    for rule in model.residual.skip_rules:
        found = scores.skips(passes, rule, together)
        np.testing.assert_allclose(found.ratio.mean(0), literal.causal(design, model, windows, rule), rtol=TOLERANCE, err_msg=rule)
        pruned = literal.pruning(design, model, windows, rule)
        np.testing.assert_allclose(found.pruned.mean(0), pruned, rtol=TOLERANCE, err_msg=rule)


@pytest.mark.parametrize("together", [1, 40, 10**6])
def test_permutation_score(case, together):
    design, model, windows, passes = case
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = score(scores.swaps(passes, together))
    np.testing.assert_allclose(found, literal.permutation(design, model, windows), atol=TOLERANCE, rtol=1e-6)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())  # all is put back


def test_segments_that_end_in_a_skipped_block():
    for size in (1, 2, 3):
        model = random_model("attnres_block", SHAPE, block_size=size).eval()
        windows = tokens(SHAPE, batch=2)
        passes = passes_of(model, windows)
        for rule in model.residual.skip_rules:
            wanted = literal.causal("attnres_block", model, windows, rule, block_size=size)
            np.testing.assert_allclose(scores.skips(passes, rule).ratio.mean(0), wanted, rtol=TOLERANCE)
        wanted = literal.permutation("attnres_block", model, windows, block_size=size)
        np.testing.assert_allclose(score(scores.swaps(passes)), wanted, atol=TOLERANCE, rtol=1e-6)


def test_a_window_has_the_same_scores_in_any_batch():
    model, windows = random_model("hc", SHAPE).eval(), tokens(SHAPE, batch=3)
    together = scores.skips(passes_of(model, windows)).ratio
    alone = np.concatenate([scores.skips(passes_of(model, windows[i : i + 1])).ratio for i in range(3)])
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_a_block_that_does_nothing_and_two_that_do_the_same():
    model = random_model("preln", SHAPE).eval()
    for part in (model.blocks[1].attention.o, model.blocks[1].mlp.down):
        part.weight.zero_()
    model.blocks[3].load_state_dict(model.blocks[2].state_dict())
    passes = passes_of(model, tokens(SHAPE))
    skips = scores.skips(passes, together=1)
    assert np.nanmax(np.abs(skips.ratio[:, 1])) == 0
    assert np.array_equal(skips.pruned[:, 1], skips.loss) and not np.allclose(skips.pruned[:, 2], skips.loss)
    swapped = score(scores.swaps(passes, together=1))
    assert swapped[2, 3] == 0 and swapped[0, 2] > 0


def test_another_designs_rule_is_refused():
    with pytest.raises(UserError, match="skip must be one of identity for preln, got 'newest'"):
        scores.skips(passes_of(random_model("preln", SHAPE).eval(), tokens(SHAPE)), "newest")
