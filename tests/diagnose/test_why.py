"""The logit lens, affine replacements, path weights and mixing against their definitions, and models whose answers are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from depthbench.diagnose import mixing, usefulness
from depthbench.diagnose.lens import lens
from depthbench.diagnose.ours import OurSubject
from depthbench.diagnose.paths import paths
from depthbench.diagnose.settings import Settings
from depthbench.diagnose.summary import summarise
from depthbench.model.frozen import are_frozen
from diagnose import literal
from helpers import DESIGNS, GQA, random_model, shape_dict, tokens
from reference import reference_trace

SHAPE = replace(GQA, n_layers=4, context=5)
FAMILY = ("attnres", "attnres_block")


def passes_of(model, windows):
    with torch.no_grad():
        return OurSubject(model, precision="fp64").begin(windows)


@pytest.fixture(params=DESIGNS, scope="module")
def case(request):
    model = random_model(request.param, SHAPE).eval()
    windows = tokens(SHAPE, batch=3)
    return request.param, model, windows, passes_of(model, windows)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("chunk", [2048, 3])
def test_lens(case, chunk, monkeypatch):
    design, model, windows, passes = case
    monkeypatch.setattr(OurSubject, "chunk_tokens", chunk)
    found = lens(passes)
    wanted = literal.lens(design, model, windows)
    for got, due in zip((found.loss, found.divergence, found.overlap), wanted, strict=True):
        np.testing.assert_allclose(got.mean(0), due, atol=1e-9)
    np.testing.assert_allclose(found.divergence[:, -1], 0, atol=1e-12)
    np.testing.assert_allclose(found.overlap[:, -1], 1)


def test_usefulness(case):
    design, model, windows, _ = case
    fitted, held_out = tokens(SHAPE, batch=6, seed=3), windows
    for blocks in usefulness.groups(SHAPE.n_layers, 16):
        sums = usefulness.AffineMaps(blocks)
        for part in fitted.split(2):  # the sums stream
            sums.add(passes_of(model, part))
        found = usefulness.replaced(passes_of(model, held_out), sums.solve())
    z, _ = literal.states(design, model, fitted)
    clean, closed = literal.states(design, model, held_out)
    parameters = literal.parameters_of(model)
    assert found.loss.mean() == pytest.approx(literal.loss_of(closed, held_out, parameters), rel=1e-9)
    for block in range(SHAPE.n_layers):
        W = literal.affine(z[block], z[block + 1])
        fit = torch.cat((clean[block], torch.ones(*clean[block].shape[:-1], 1, dtype=W.dtype)), -1) @ W
        wanted = literal.loss_of(literal.continued(design, model, held_out, block, fit), held_out, parameters)
        assert found.replaced.mean(0)[block] == pytest.approx(wanted, rel=1e-6), block


def test_groups_of_blocks_bound_the_memory():
    assert usefulness.groups(4, 16) == [range(4)]
    wide = usefulness.groups(32, 4864)
    assert [block for group in wide for block in group] == list(range(32)) and len(wide) == 32


def test_path_weights(case):
    design, model, windows, passes = case
    found = paths(passes)
    np.testing.assert_allclose(found.weight.mean(0), literal.paths(design, model, windows), atol=1e-10)
    np.testing.assert_allclose(found.deviation, 0, atol=1e-12)
    assert not are_frozen() and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("design", ["preln", "hc", "mhc", "moda", *FAMILY])
def test_path_weights_make_up_the_inputs(design):
    """Where a path is a number, an input is the sum of the outputs before it, times their weights."""
    model = random_model(design, SHAPE).eval()
    window = tokens(SHAPE, batch=1)[:, :1]  # one token: no mean over tokens stands between
    weights = paths(passes_of(model, window)).weight[0]
    trace = reference_trace(design, shape_dict(SHAPE), literal.parameters_of(model), window)
    sources = [trace["embedding"], *trace["outputs"]]
    for i, x in enumerate([*trace["inputs"], trace["closed"]]):
        made = sum(weights[i, j] * sources[j] for j in range(i + 1))
        torch.testing.assert_close(made, x, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_coefficients_that_are_not_held_fixed_are_found_out(tmp_path, told, normed):
    """Also those that do not depend on the length of the state: there the inputs add up all the same."""
    (tmp_path / "mine.py").write_text(
        f"""
import torch
from depthbench import Link, Residual, RMSNorm
from depthbench.model.frozen import coefficient

class GateLink(Link):
    def __init__(self, d_model):
        super().__init__()
        self.norm = RMSNorm(d_model)
        self.query = torch.nn.Parameter(torch.ones(d_model))
    def read(self, state):
        return self.norm(state)
    def write(self, state, y):
        seen = torch.nn.functional.normalize(state, dim=-1) if {normed} else state
        gate = torch.sigmoid((seen * self.query).sum(-1, keepdim=True))
        return state + (coefficient(gate) if {told} else gate) * y

class Gate(Residual):
    def link(self, i):
        return GateLink(self.shape.d_model)
"""
    )
    model = random_model(f"{tmp_path / 'mine.py'}:Gate", SHAPE).eval()
    deviation = paths(passes_of(model, tokens(SHAPE, batch=3))).deviation
    assert (deviation == 0).all() if told else (deviation > 0.05).all()
    content = summarise({"paths": vars(paths(passes_of(model, tokens(SHAPE))))}, Settings(), None)
    assert content["paths"]["linear"] is told


@pytest.mark.parametrize("design", ["hc", "mhc"])
def test_streams(design):
    model, windows = random_model(design, SHAPE).eval(), tokens(SHAPE, batch=2)
    found = mixing.streams(passes_of(model, windows))
    trace = reference_trace(design, shape_dict(SHAPE), literal.parameters_of(model), windows)
    ranks = np.zeros((2, SHAPE.n_layers))
    for b in range(2):
        for t in range(windows.shape[1]):
            product = np.eye(4)
            for i in range(2 * SHAPE.n_layers):
                here = trace["A"][i][b, t, :, 1:].T if design == "hc" else trace["R"][i][b, t]
                product = here.numpy() @ product
                if i % 2:
                    values = np.linalg.svd(product, compute_uv=False)
                    p = values / values.sum()
                    ranks[b, i // 2] += math.exp(-sum(q * math.log(q) for q in p if q > 0)) / windows.shape[1]
    np.testing.assert_allclose(found.effective_rank, ranks, rtol=1e-6)
    np.testing.assert_allclose(found.spectrum.sum(-1), 1)
    last = trace["states"][-1][0, 0].numpy()
    unit = last / np.linalg.norm(last, axis=-1, keepdims=True)
    wanted = np.mean([abs(unit[a] @ unit[c]) for a in range(4) for c in range(a + 1, 4)])
    one = mixing.streams(passes_of(model, windows[:1, :1]))
    assert one.overlap[0, -1] == pytest.approx(wanted)
    np.testing.assert_allclose(one.overlap[0, 0], 1)  # n copies of the embedding


def test_a_uniform_map_of_streams_has_rank_one_and_the_identity_has_them_all():
    model = random_model("mhc", SHAPE).eval()
    for block in model.blocks:
        for link in (block.attention_link, block.mlp_link):
            link.g_res.zero_()
            link.bias[8:].zero_()  # equal logits: every target takes all sources alike
    np.testing.assert_allclose(mixing.streams(passes_of(model, tokens(SHAPE))).effective_rank, 1, atol=1e-6)
    model = random_model("hc", SHAPE).eval()
    for block in model.blocks:
        for link in (block.attention_link, block.mlp_link):
            link.a.zero_()
            link.A0[:, 1:] = torch.eye(4)
    found = mixing.streams(passes_of(model, tokens(SHAPE)))
    np.testing.assert_allclose(found.effective_rank, 4)
    np.testing.assert_allclose(found.spectrum, 0.25)


def test_running_weights_and_a_designed_dead_segment():
    shape = replace(SHAPE, n_layers=6)
    model = random_model("attnres_block", shape, block_size=8).eval()
    model.embedding.weight[:, 1] = 5.0
    for number, block in enumerate(model.blocks):
        block.attention.o.weight[1] = 0  # no sublayer writes where queries look
        block.mlp.down.weight[1] = 0
        for link in (block.attention_link, block.mlp_link):
            if link.mix is not None:
                link.mix.query.zero_()
                link.mix.key_gain.fill_(1.0)
                if number < 2:
                    link.mix.query[1] = 20.0
    passes = passes_of(model, tokens(shape))
    weights = mixing.running_weights(passes)
    assert np.isnan(weights[:, [0, 8]]).all()  # no mix, and the first after the seal
    np.testing.assert_allclose(weights[:, 4:8], 0.5)
    np.testing.assert_allclose(weights[:, 9:12], 1 / 3)
    np.testing.assert_allclose(weights[:, 1:4], 0, atol=1e-3)
    assert mixing.dead_segment(weights.mean(0), 8) == 2
    assert mixing.dead_segment(weights.mean(0), 8, below=0.6) == 4
    trace = reference_trace("attnres_block", shape_dict(shape), literal.parameters_of(model), tokens(shape), block_size=8)
    np.testing.assert_allclose(weights[:, 1:8].mean(0), [float(trace["weights"][i][..., -1].mean()) for i in range(1, 8)])


def test_dead_segments_that_end_in_the_middle_of_a_block():
    assert mixing.dead_segment(np.array([math.nan, 0.01, 0.01, math.nan]), 3) == 2
    assert mixing.dead_segment(np.array([math.nan, 0.01, 0.5, math.nan]), 3) == 1
    assert mixing.dead_segment(np.array([math.nan, 0.2]), 2) == 0
    assert mixing.dead_segment(np.array([math.nan, math.nan]), 1) == 0
