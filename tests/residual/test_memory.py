"""Memory for training grows linearly in depth, as autograd counts it. The peer that stacks its sources fails the same test."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from depthbench import ModelShape, build_model
from helpers import DESIGNS, GQA, random_model, tokens

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STACKED = f"{BENCHMARKS / 'stacked_attnres.py'}:StackedAttnRes"


@pytest.fixture
def saved_bytes(monkeypatch):
    """What `benchmarks/memory.py` measures with."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("memory").saved_bytes


def growth(saved_bytes, design):
    """Bytes that layers 9 to 16 cost, over those that layers 5 to 8 cost: 2 if memory is linear in depth, 4 if it is quadratic."""
    saved = {}
    for n_layers in (4, 8, 16):
        shape = ModelShape(n_layers, 64, 2, vocab_size=32, context=8)
        saved[n_layers] = saved_bytes(build_model(design, shape), tokens(shape, batch=1))
    return (saved[16] - saved[8]) / (saved[8] - saved[4])


@pytest.mark.parametrize("design", DESIGNS)
def test_memory_for_training_grows_linearly_in_depth(design, saved_bytes):
    """AttnRes keeps two numbers a pair of source and reader on top, against the d numbers of a stack: hence not exactly 2."""
    assert 1.99 < growth(saved_bytes, design) < 2.2


def test_a_stack_for_every_sublayer_does_not(saved_bytes):
    assert growth(saved_bytes, STACKED) > 2.8


def test_the_stacked_peer_computes_what_attnres_computes():
    model, x = random_model("attnres", GQA), tokens(GQA)
    peer = build_model(STACKED, GQA).double()
    peer.load_state_dict(model.state_dict())
    torch.testing.assert_close(peer(x), model(x), rtol=0, atol=1e-12)


class Kept(nn.Module):
    """Logits from an embedding by way of a function whose result autograd keeps."""

    def __init__(self, function):
        super().__init__()
        self.embedding = nn.Embedding(7, 7)
        self.function = function

    def forward(self, tokens_BT):
        return self.function(self.embedding(tokens_BT))


def test_a_storage_counts_once_however_often_it_is_kept(saved_bytes):
    x = torch.zeros(3, 5, dtype=torch.long)
    none, once, again, copied = (
        saved_bytes(Kept(function), x)
        for function in (
            lambda e: e,
            torch.exp,
            lambda e: e.exp().view(15, 7)[:, None].square().view(3, 5, 7),  # keeps the result of exp, and a view of it
            lambda e: e.exp().clone().square(),
        )
    )
    size = 3 * 5 * 7 * 4
    assert (once - none, again - none, copied - none) == (size, size, 2 * size)


def test_parameters_do_not_count(saved_bytes):
    x = torch.zeros(1, 1, dtype=torch.long)
    large = saved_bytes(Kept(nn.Sequential(nn.Linear(7, 100_000), nn.Linear(100_000, 7))), x)
    assert 100_000 * 4 < large < 2 * 100_000 * 4  # the activation alone
