"""The order of data as a whole: epochs, processes that share a batch, and runs that are continued."""

import random

import numpy as np
import pytest
import torch.distributed as dist

from depthbench.data import TokenData, training_batch
from depthbench.data.shards import Sharded
from depthbench.model.parallel import Together


def data_of(n_tokens, rng):
    """Tokens that tell where they are, in one file or in several."""
    manifest = type("Manifest", (), {"vocab_size": 2**32})()
    tokens = np.arange(n_tokens).astype("<u4")
    cuts = sorted(rng.sample(range(1, n_tokens), rng.randrange(0, 4)))
    train = Sharded(np.split(tokens, cuts)) if cuts else tokens
    return TokenData(manifest, train, tokens, np.ones(1, dtype=np.int64))


def places(data, *, context, **request):
    """The windows of a batch, by number, after a look at all of their tokens."""
    inputs, targets = training_batch(data, context=context, **request)
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(context)) and np.array_equal(targets, inputs + 1)
    return (inputs[:, 0] // context).tolist()


@pytest.mark.parametrize("case", range(30))
def test_an_epoch_has_every_window_once(case):
    rng = random.Random(case)
    data, context, size, seed = (
        data_of(rng.randrange(20, 3000), rng),
        rng.randrange(1, 9),
        rng.randrange(1, 70),
        rng.randrange(2**40),
    )
    n = (len(data.train) - 1) // context
    steps = -(-2 * n // size)
    seen = [w for step in range(steps) for w in places(data, context=context, batch_size=size, seed=seed, step=step)]
    assert sorted(seen[:n]) == sorted(seen[n : 2 * n]) == list(range(n))


@pytest.mark.parametrize("case", range(30))
def test_processes_share_a_batch_without_loss_or_overlap(case, monkeypatch):
    rng = random.Random(case)
    data, context = data_of(rng.randrange(300, 3000), rng), rng.randrange(1, 9)
    size, seed, step = rng.randrange(1, 70), rng.randrange(2**40), rng.randrange(10_000)
    n_processes, micro = rng.randrange(1, size + 1), rng.randrange(1, 20)
    request = {"context": context, "batch_size": size, "seed": seed, "step": step}
    dealt, read, counts = [], [], set()
    for rank in range(n_processes):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: n_processes)
        process = Together()
        dealt += process.rows(size)
        pieces = list(process.micro_batches(size, micro))
        counts.add(len(pieces))
        for rows, weight in pieces:
            if weight:
                read += places(data, rows=rows, **request)
    assert dealt == list(range(size)) and len(counts) == 1
    assert read == places(data, **request)


@pytest.mark.parametrize("case", range(10))
def test_a_run_continued_at_any_step_goes_on_in_the_same_order(case):
    rng = random.Random(case)
    data = data_of(rng.randrange(100, 1000), rng)
    request = {"context": rng.randrange(1, 9), "batch_size": rng.randrange(1, 30), "seed": case}
    uninterrupted = [places(data, step=step, **request) for step in range(40)]
    stop = rng.randrange(40)
    again = TokenData(data.manifest, data.train, data.validation, data.token_bytes)
    assert [places(again, step=step, **request) for step in range(stop, 40)] == uninterrupted[stop:]
