"""Validation loss against a plain loop over windows of the token file."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from depthbench import ModelShape, build_model
from depthbench.errors import UserError
from depthbench.evaluate.validation import validate
from helpers import random_model

SHAPE = ModelShape(2, 16, 4, n_kv_heads=2, d_ff=24, vocab_size=257, context=48)
EOS = 256


@pytest.fixture(scope="module")
def stored(tokens_folder):
    return np.fromfile(tokens_folder / "validation.bin", dtype="<u2").astype(np.int64)


@pytest.fixture(scope="module")
def model():
    return random_model("preln", SHAPE)


def plain_loop(model, stored, n_windows):
    """Summed nats, predictions and bytes, one prediction at a time from log-softmax."""
    nats, count, n_bytes = 0.0, 0, 0
    for window in range(n_windows):
        piece = stored[window * SHAPE.context : (window + 1) * SHAPE.context + 1]
        with torch.no_grad():
            logp = model(torch.from_numpy(piece[None, :-1])).log_softmax(-1)[0]
        for position, target in enumerate(piece[1:]):
            nats -= float(logp[position, target])
            count += 1
            n_bytes += target != EOS
    return nats, count, n_bytes


@pytest.mark.parametrize("n_windows", [1, 60])
def test_it_is_the_mean_over_tokens_and_bits_per_byte(model, token_data, stored, n_windows):
    nats, count, n_bytes = plain_loop(model, stored, n_windows)
    found = validate(model, token_data, n_windows=n_windows, batch_size=7, precision="fp32")
    assert (found.tokens, found.n_bytes) == (count, n_bytes)
    assert found.loss == pytest.approx(nats / count, rel=1e-12)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-12)
    if n_windows > 1:
        assert n_bytes < count  # an end of a document is among them, and counts no byte


def test_no_number_of_windows_means_all_of_them(model, token_data, stored):
    found = validate(model, token_data, n_windows=0, batch_size=64, precision="fp32")
    assert found.tokens == (len(stored) - 1) // SHAPE.context * SHAPE.context


def test_the_batch_size_does_not_matter(token_data):
    model = random_model("hc", SHAPE).float()
    losses = [validate(model, token_data, n_windows=40, batch_size=size, precision="fp32") for size in (1, 3, 16, 40, 1000)]
    for found in losses:
        assert found == replace(losses[0], loss=found.loss, bits_per_byte=found.bits_per_byte)
        assert found.loss == pytest.approx(losses[0].loss, abs=1e-6)
        assert found.bits_per_byte == pytest.approx(losses[0].bits_per_byte, abs=1e-6)


def test_a_model_that_knows_nothing_scores_the_logarithm_of_the_vocabulary(token_data):
    model = build_model("preln", SHAPE)
    torch.nn.init.zeros_(model.head.weight)
    found = validate(model, token_data, n_windows=10, batch_size=4, precision="fp32")
    assert found.loss == pytest.approx(math.log(257), rel=1e-6)
    assert found.bits_per_byte == pytest.approx(math.log2(257) * found.tokens / found.n_bytes, rel=1e-6)


def test_bf16_is_close(token_data):
    model = build_model("preln", SHAPE)
    half, full = (validate(model, token_data, n_windows=10, batch_size=4, precision=p) for p in ("bf16", "fp32"))
    assert half.loss == pytest.approx(full.loss, rel=1e-3)
    assert half.loss != full.loss


@pytest.mark.parametrize("was_training", [True, False])
def test_the_model_is_left_as_it_was(model, token_data, was_training):
    model.train(was_training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = []
    handle = model.norm.register_forward_hook(lambda module, given, y: modes.append((module.training, y.requires_grad)))
    validate(model, token_data, n_windows=3, batch_size=2, precision="fp32")
    handle.remove()
    assert modes == [(False, False)] * 2
    assert model.training == model.norm.training == was_training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_more_windows_than_there_are_is_refused(model, token_data):
    with pytest.raises(UserError, match="1000000 validation windows asked for"):
        validate(model, token_data, n_windows=10**6, batch_size=2, precision="fp32")
