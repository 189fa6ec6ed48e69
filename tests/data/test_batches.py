import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.helpers import edit_manifest
from depthbench.data import TokenData, batches, check_fits, load_manifest, training_batch, validation_batches
from depthbench.data.permutation import permute
from depthbench.errors import UserError


def data_of(n_train, n_validation=20, vocab_size=257):
    """Token data in memory: token i of training is i mod 250, so a window shows where it came from."""
    manifest = type("Manifest", (), {"vocab_size": vocab_size})()
    lengths = (np.arange(vocab_size) != vocab_size - 1).astype(np.int64)
    return TokenData(manifest, (np.arange(n_train) % 250).astype("<u2"), (np.arange(n_validation) % 250).astype("<u2"), lengths)


def test_open_maps_the_files(prepared):
    data = TokenData.open(prepared)
    for split in ("train", "validation"):
        tokens = getattr(data, split)
        assert isinstance(tokens, np.memmap) and tokens.dtype == np.dtype("<u2") and not tokens.flags.writeable
        assert np.array_equal(tokens, np.fromfile(prepared / f"{split}.bin", dtype="<u2"))
        assert data.bytes_of(tokens) == getattr(data.manifest, split).bytes
    assert data.manifest == load_manifest(prepared)


def test_bytes_of_counts_text_not_eos():
    data = data_of(10)
    assert data.bytes_of([1, 2, 256, 256]) == 2
    assert data.bytes_of(np.array([[97, 256], [256, 98]])) == 2
    assert data.bytes_of([256]) == 0


def flip(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "token_bytes.npy"])
def test_one_flipped_bit_is_refused(copy, name):
    flip(copy / name, -2)
    with pytest.raises(UserError, match=rf"{name} does not have the hash in its manifest.*delete it and prepare it again"):
        TokenData.open(copy)


def test_huge_training_tokens_are_hashed_on_demand_only(copy, monkeypatch):
    size = (copy / "train.bin").stat().st_size
    flip(copy / "train.bin", 0)
    monkeypatch.setattr(batches, "TRAIN_HASH_BYTES", size)
    with pytest.raises(UserError, match=r"train\.bin does not have the hash"):
        TokenData.open(copy)
    monkeypatch.setattr(batches, "TRAIN_HASH_BYTES", size - 1)
    TokenData.open(copy)
    with pytest.raises(UserError, match=r"train\.bin does not have the hash"):
        TokenData.open(copy, verify=True)
    flip(copy / "validation.bin", 0)
    with pytest.raises(UserError, match=r"validation\.bin does not have the hash"):
        TokenData.open(copy)


def test_ids_outside_the_vocabulary_are_refused(copy, monkeypatch):
    edit_manifest(copy, vocab_size=100, eos=99)
    with pytest.raises(UserError, match=r"validation\.bin: token id 256 is outside the vocabulary of 100"):
        TokenData.open(copy)
    with pytest.raises(UserError, match="token id 249 is outside the vocabulary of 249"):
        training_batch(data_of(300, vocab_size=249), context=250, batch_size=1, seed=0, step=0)


def test_token_lengths_of_another_vocabulary_are_refused(copy):
    edit_manifest(copy, vocab_size=258)
    with pytest.raises(UserError, match=r"token_bytes\.npy has shape \(257,\), the vocabulary has 258 ids"):
        TokenData.open(copy)


def test_a_missing_file_is_named(copy):
    (copy / "token_bytes.npy").unlink()
    with pytest.raises(UserError, match=r"cannot read .*token_bytes\.npy"):
        TokenData.open(copy)


sizes = st.integers(1, 12)


@settings(max_examples=150, deadline=None)
@given(context=sizes, n_tokens=st.integers(14, 240), batch_size=sizes, seed=st.integers(0, 99), step=st.integers(0, 60))
def test_every_row_is_the_window_that_the_rule_names(context, n_tokens, batch_size, seed, step):
    data = data_of(n_tokens)
    inputs, targets = training_batch(data, context=context, batch_size=batch_size, seed=seed, step=step)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == targets.shape == (batch_size, context)
    n = (n_tokens - 1) // context
    for row in range(batch_size):
        epoch, index = divmod(step * batch_size + row, n)
        start = int(permute([index], n, seed, [epoch])[0]) * context
        assert inputs[row].tolist() == data.train[start : start + context].tolist()
        assert targets[row].tolist() == data.train[start + 1 : start + context + 1].tolist()


@pytest.mark.parametrize(("n_tokens", "batch_size"), [(101, 3), (101, 5), (107, 4), (33, 64)])
def test_an_epoch_visits_every_window_once_wherever_batches_end(n_tokens, batch_size):
    data, context = data_of(n_tokens), 5
    n = (n_tokens - 1) // context
    steps = -(-3 * n // batch_size)
    starts = np.concatenate(
        [training_batch(data, context=context, batch_size=batch_size, seed=4, step=s)[0][:, 0] for s in range(steps)]
    )
    visits = [starts[epoch * n : (epoch + 1) * n] // context for epoch in range(3)]
    for visit in visits:
        assert sorted(visit) == list(range(n))
    if n > 6:
        assert visits[0].tolist() != visits[1].tolist() != visits[2].tolist()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.data())
def test_rows_are_slices_of_the_whole_batch(batch_size, step, data_of_test):
    data = data_of(64)
    whole = training_batch(data, context=5, batch_size=batch_size, seed=1, step=step)
    bound = st.one_of(st.none(), st.integers(-10, 10))
    rows = slice(data_of_test.draw(bound), data_of_test.draw(bound), data_of_test.draw(st.sampled_from([None, 1, 2])))
    for part, all_rows in zip(
        training_batch(data, context=5, batch_size=batch_size, seed=1, step=step, rows=rows), whole, strict=True
    ):
        assert np.array_equal(part, all_rows[rows])


def test_micro_batches_together_are_the_batch(prepared):
    data = TokenData.open(prepared)
    whole = training_batch(data, context=16, batch_size=12, seed=2, step=30)
    for size in (1, 4, 5, 12):
        pieces = [
            training_batch(data, context=16, batch_size=12, seed=2, step=30, rows=slice(start, start + size))
            for start in range(0, 12, size)
        ]
        for side in (0, 1):
            assert np.array_equal(np.concatenate([piece[side] for piece in pieces]), whole[side])


def test_a_step_does_not_depend_on_the_steps_before():
    data = data_of(200)

    def batch(step, seed=0):
        return training_batch(data, context=7, batch_size=4, seed=seed, step=step)

    forward = [batch(step) for step in range(20)]
    for step in (13, 2, 19, 2):
        assert all(np.array_equal(a, b) for a, b in zip(batch(step), forward[step], strict=True))
    assert not np.array_equal(batch(0, seed=1)[0], forward[0][0])
    first = batch(0)[0]
    first[:] = 0  # the caller owns what it gets
    assert np.array_equal(batch(0)[0], forward[0][0])


def test_batches_own_their_memory():
    inputs, targets = training_batch(data_of(200), context=7, batch_size=4, seed=0, step=0)
    assert inputs.flags.c_contiguous and targets.flags.c_contiguous and not np.shares_memory(inputs, targets)


@pytest.mark.parametrize(("n_windows", "sizes"), [(None, [3, 3, 3, 1]), (10, [3, 3, 3, 1]), (3, [3]), (4, [3, 1]), (1, [1])])
def test_validation_windows_start_at_token_0(n_windows, sizes):
    data = data_of(20, n_validation=54)  # ten windows of context 5, a tail of 3
    found = list(validation_batches(data, context=5, batch_size=3, n_windows=n_windows))
    assert [len(inputs) for inputs, _ in found] == sizes
    inputs, targets = (np.concatenate(side).ravel() for side in zip(*found, strict=True))
    assert inputs.tolist() == list(range(5 * sum(sizes)))
    assert targets.tolist() == list(range(1, 5 * sum(sizes) + 1))


@pytest.mark.parametrize(("n_tokens", "windows"), [(6, 1), (10, 1), (11, 2)])
def test_a_window_needs_context_plus_one_tokens(n_tokens, windows):
    data = data_of(20, n_validation=n_tokens)
    check_fits(data, 5, windows)
    with pytest.raises(UserError, match=f"{windows + 1} validation windows asked for, but there are only {windows} of context 5"):
        check_fits(data, 5, windows + 1)


@pytest.mark.parametrize(
    ("data", "context", "n_windows", "message"),
    [
        (data_of(5), 5, None, "corpus too small: train has 5 tokens, one window of context 5 needs 6"),
        (data_of(50, n_validation=5), 5, None, "corpus too small: validation has 5 tokens, one window of context 5 needs 6"),
        (data_of(50), 0, None, "context must be at least 1, got 0"),
        (data_of(50), 5, 0, "number of validation windows must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(data, context, n_windows, message):
    with pytest.raises(UserError, match=message):
        check_fits(data, context, n_windows)
    with pytest.raises(UserError, match=message):
        list(validation_batches(data, context=context, batch_size=2, n_windows=n_windows))


def test_training_on_too_few_tokens_is_refused():
    with pytest.raises(UserError, match="train has 5 tokens"):
        training_batch(data_of(5), context=5, batch_size=1, seed=0, step=0)
