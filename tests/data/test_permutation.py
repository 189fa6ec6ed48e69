import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthbench.data.permutation import ROUNDS, mix, permute

MASK = 2**64 - 1
sizes = st.one_of(st.integers(1, 40), st.integers(41, 5000))
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**40)


def whole(n, seed, epoch):
    return permute(np.arange(n), n, seed, [epoch])


def reference_mix(word):
    """splitmix64 in Python's own integers."""
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def reference(index, n, seed, epoch):
    """One entry, step by step, in Python's own integers."""
    half = 1
    while 4**half < n:
        half += 1
    key = reference_mix((reference_mix(seed) + epoch) & MASK)
    value = index
    while True:
        left, right = divmod(value, 2**half)
        for number in range(ROUNDS):
            round_key = reference_mix((key + number) & MASK)
            left, right = right, left ^ (reference_mix(right ^ round_key) % 2**half)
        value = left * 2**half + right
        if value < n:
            return value


def test_mix_is_splitmix64():
    # first outputs of the published generator for state 0 and 1234567
    assert int(mix(np.array([0], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF
    assert int(mix(np.array([1234567], dtype=np.uint64))[0]) == 6457827717110365317


@pytest.mark.parametrize(
    ("n", "seed", "epoch", "first"),
    [
        (1, 0, 0, [0]),
        (10, 0, 0, [7, 8, 2, 6, 9, 3, 0, 4, 5, 1]),
        (10, 0, 1, [5, 6, 8, 2, 0, 3, 4, 1, 7, 9]),
        (10, 1, 0, [9, 0, 3, 7, 4, 1, 6, 2, 8, 5]),
        (1_000_003, 7, 3, [316773, 396155, 602541, 964553, 742181]),
    ],
)
def test_data_order_never_changes(n, seed, epoch, first):
    assert permute(np.arange(len(first)), n, seed, [epoch]).tolist() == first


@settings(max_examples=100, deadline=None)
@given(sizes, seeds, epochs)
def test_a_bijection(n, seed, epoch):
    assert np.array_equal(np.sort(whole(n, seed, epoch)), np.arange(n))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 2**40), seeds, epochs)
def test_equals_the_reference(data, n, seed, epoch):
    index = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    assert permute(index, n, seed, [epoch]).tolist() == [reference(i, n, seed, epoch) for i in index]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), seeds, st.data())
def test_entries_are_independent_of_their_company(n, seed, data):
    pairs = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 5)), max_size=20))
    index, epoch = [i for i, _ in pairs], [e for _, e in pairs]
    together = permute(index, n, seed, epoch)
    assert together.shape == (len(pairs),)
    assert together.tolist() == [int(permute([i], n, seed, [e])[0]) for i, e in pairs]


@pytest.mark.parametrize("n", [50, 64, 65, 1000])
def test_seeds_and_epochs_give_different_orders(n):
    orders = {tuple(whole(n, seed, epoch).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100
    assert tuple(whole(n, -1, 0)) == tuple(whole(n, 2**64 - 1, 0))


@pytest.mark.parametrize("n", [2, 3, 5, 16, 17, 100])
def test_places_are_uniform(n):
    """Over many epochs every window comes to the first, middle and last place equally often (chi-square, 6 sigma)."""
    trials = 200 * n
    for place in {0, n // 2, n - 1}:
        counts = np.bincount(permute(np.full(trials, place), n, 3, np.arange(trials)), minlength=n)
        chi_square = ((counts - 200) ** 2 / 200).sum()
        assert abs(chi_square - (n - 1)) < 6 * np.sqrt(2 * (n - 1)) + 1


@pytest.mark.parametrize("n", [3, 4, 6])
def test_all_orders_of_a_small_set_come_up_equally_often(n):
    orders = np.stack([permute(np.full(12_000, place), n, 0, np.arange(12_000)) for place in range(n)], axis=1)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    expected = 12_000 / np.prod(np.arange(1, n + 1))
    assert len(counts) == 12_000 / expected
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (len(counts) - 1)) < 6 * np.sqrt(2 * (len(counts) - 1))


def test_neighbours_are_torn_apart():
    order = whole(20_000, 0, 0)
    assert abs(np.corrcoef(order, np.arange(20_000))[0, 1]) < 0.04
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.04
    assert abs(np.corrcoef(order, whole(20_000, 0, 1))[0, 1]) < 0.04
