"""Scores against their definitions, on all ten designs; and models whose scores are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from depthbench.diagnose.scores import angular, causal, permutation
from depthbench.errors import UserError
from diagnose import literal
from helpers import DESIGNS, GQA, random_model, tokens

SHAPE = replace(GQA, n_layers=4, context=5)
TOLERANCE = 1e-9


@pytest.fixture(params=DESIGNS, scope="module")
def case(request):
    model = random_model(request.param, SHAPE).eval()
    return request.param, model, tokens(SHAPE, batch=3)


def test_angular_distance(case):
    design, model, windows = case
    np.testing.assert_allclose(angular(model, windows).mean(0), literal.angular(design, model, windows), atol=1e-7)


def test_causal_score_under_every_rule(case):
    design, model, windows = case
    for rule in model.residual.skip_rules:
        found = causal(model, windows, rule)
        np.testing.assert_allclose(found.ratio.mean(0), literal.causal(design, model, windows, rule), rtol=TOLERANCE, err_msg=rule)


def test_permutation_score(case):
    design, model, windows = case
    before = {name: p.clone() for name, p in model.named_parameters()}
    np.testing.assert_allclose(
        permutation(model, windows).score(), literal.permutation(design, model, windows), atol=TOLERANCE, rtol=1e-6
    )
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())  # all is put back


def test_segments_that_end_in_a_skipped_block():
    for size in (1, 2, 3):
        model = random_model("attnres_block", SHAPE, block_size=size).eval()
        windows = tokens(SHAPE, batch=2)
        for rule in model.residual.skip_rules:
            wanted = literal.causal("attnres_block", model, windows, rule, block_size=size)
            np.testing.assert_allclose(causal(model, windows, rule).ratio.mean(0), wanted, rtol=TOLERANCE)


def test_a_window_has_the_same_scores_in_any_batch():
    model, windows = random_model("hc", SHAPE).eval(), tokens(SHAPE, batch=3)
    together = causal(model, windows).ratio
    alone = np.concatenate([causal(model, windows[i : i + 1]).ratio for i in range(3)])
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_a_block_that_does_nothing_and_two_that_do_the_same():
    model = random_model("preln", SHAPE).eval()
    with torch.no_grad():
        for part in (model.blocks[1].attention.o, model.blocks[1].mlp.down):
            part.weight.zero_()
        model.blocks[3].load_state_dict(model.blocks[2].state_dict())
    windows = tokens(SHAPE)
    assert np.nanmax(np.abs(causal(model, windows).ratio[:, 1])) == 0
    score = permutation(model, windows).score()
    assert score[2, 3] == 0 and score[0, 2] > 0


def test_another_designs_rule_is_refused():
    with pytest.raises(UserError, match="skip must be one of identity for this design, got 'newest'"):
        causal(random_model("preln", SHAPE).eval(), tokens(SHAPE), "newest")
