"""Training tokens in several files: the same stream, the same batches, and a clear word when one is missing."""

import json
import random

import numpy as np
import pytest

from data.helpers import contents, snapshot
from depthbench.data import TokenData, batches, describe, load_manifest, prepare, shards, training_batch, validation_batches
from depthbench.data.shards import Sharded
from depthbench.errors import UserError

OPTIONS = {"validation_fraction": 0.2, "quiet": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same documents in one file, and in files of 97 tokens; tests read them and never change them."""
    root = tmp_path_factory.mktemp("shards")
    rng = random.Random(3)
    rows = [json.dumps({"text": "".join(rng.choices("abcdefgh ", k=rng.randrange(1, 90)))}) for _ in range(60)]
    (root / "a.jsonl").write_text("\n".join(rows))
    prepare([str(root / "a.jsonl")], root / "one", **OPTIONS)
    prepare([str(root / "a.jsonl")], root / "many", shard_tokens=97, **OPTIONS)
    return root / "one", root / "many", root / "a.jsonl"


@pytest.fixture
def damaged(folders, tmp_path):
    target = tmp_path / "copy"
    target.mkdir()
    for name, content in contents(folders[1]).items():
        (target / name).write_bytes(content)
    return target


def test_shards_are_the_stream_cut(folders):
    one, many, _ = folders
    names = sorted(path.name for path in many.glob("train*"))
    manifest = load_manifest(many)
    assert names[:2] == ["train-00000.bin", "train-00001.bin"] and len(names) > 5
    assert [shard.file for shard in manifest.train.shards] == names == describe(many)["train"]["files"]
    assert [shard.tokens for shard in manifest.train.shards[:-1]] == [97] * (len(names) - 1)
    assert b"".join((many / name).read_bytes() for name in names) == (one / "train.bin").read_bytes()
    assert manifest.fingerprint == load_manifest(one).fingerprint
    assert contents(many)["validation.bin"] == contents(one)["validation.bin"]


@pytest.mark.parametrize("bound", [7, 50, 97, 10_000])
def test_sharding_changes_no_batch(folders, tmp_path, bound):
    one, _, source = folders
    prepare([str(source)], tmp_path / "out", shard_tokens=bound, **OPTIONS)
    single, several = TokenData.open(one), TokenData.open(tmp_path / "out", verify=True)
    assert isinstance(single.train, np.memmap) and isinstance(several.train, np.memmap if bound == 10_000 else Sharded)
    for context, size, rows in ((1, 7, None), (16, 5, None), (300, 3, slice(1, 3)), (len(single.train) - 1, 2, None)):
        for step in (0, 1, 2, 40):
            due, found = (
                training_batch(data, context=context, batch_size=size, seed=5, step=step, rows=rows) for data in (single, several)
            )
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(due, found, strict=True))
    for due, found in zip(*(validation_batches(data, context=8, batch_size=4) for data in (single, several)), strict=True):
        assert np.array_equal(due[0], found[0])


def test_reading_a_stream_of_shards_of_any_length():
    rng = random.Random(0)
    for _ in range(200):
        sizes = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 8))]
        whole = np.arange(sum(sizes)).astype("<u2")
        stream = Sharded(np.split(whole, np.cumsum(sizes)[:-1]))
        assert len(stream) == len(whole) and stream.nbytes == whole.nbytes
        length = rng.randrange(1, len(whole) + 1)
        starts = np.array([rng.randrange(len(whole) - length + 1) for _ in range(3)])
        assert np.array_equal(stream.windows(starts, length), np.stack([whole[s : s + length] for s in starts]))


def test_the_bound_is_part_of_neither_fingerprint_nor_request(folders):
    one, many, source = folders
    for folder in (one, many):
        before = snapshot(folder)
        prepare([str(source)], folder, shard_tokens=11, **OPTIONS)
        assert snapshot(folder) == before


def test_a_bound_that_cannot_be(folders, tmp_path):
    with pytest.raises(UserError, match="shards must hold at least 1 token, got 0"):
        prepare([str(folders[2])], tmp_path / "out", shard_tokens=0, **OPTIONS)


# --- missing and damaged shards -------------------------------------------------------------------------------------


def test_a_missing_shard_is_named(damaged, folders):
    (damaged / "train-00003.bin").unlink()
    for call in (TokenData.open, describe, lambda folder: prepare([str(folders[2])], folder, **OPTIONS)):
        with pytest.raises(UserError, match=r"cannot read .*train-00003\.bin: No such file or directory; restore"):
            call(damaged)


def test_a_truncated_shard_is_named(damaged):
    content = (damaged / "train-00002.bin").read_bytes()
    (damaged / "train-00002.bin").write_bytes(content[:-2])
    with pytest.raises(UserError, match=r"train-00002\.bin has 192 bytes, its manifest says 194; restore"):
        TokenData.open(damaged)


def test_a_flipped_bit_is_found_in_its_shard(damaged, monkeypatch):
    content = bytearray((damaged / "train-00004.bin").read_bytes())
    content[0] ^= 1
    (damaged / "train-00004.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"train-00004\.bin does not have the hash in its manifest"):
        TokenData.open(damaged)
    monkeypatch.setattr(batches, "TRAIN_HASH_BYTES", 200)  # more than one shard has, less than all
    TokenData.open(damaged)


def test_shards_that_were_swapped_are_found(damaged):
    first, second = damaged / "train-00000.bin", damaged / "train-00001.bin"
    content = json.loads((damaged / "manifest.json").read_text())
    content["train"]["shards"][:2] = content["train"]["shards"][1::-1]
    (damaged / "manifest.json").write_text(json.dumps(content))
    assert first.exists() and second.exists()
    with pytest.raises(UserError, match="does not have the hash"):
        TokenData.open(damaged)


def test_a_shard_that_goes_while_they_are_written(folders, tmp_path, monkeypatch):
    real = shards.write_shard
    out = tmp_path / "out"

    def write_shard(path, *rest):
        if path.name == "train-00002.bin":
            (out / "train-00001.bin").unlink()
        return real(path, *rest)

    monkeypatch.setattr(shards, "write_shard", write_shard)
    with pytest.raises(UserError, match=r"cannot read .*train-00001\.bin: No such file or directory; repeat to continue"):
        prepare([str(folders[2])], out, shard_tokens=97, **OPTIONS)
    assert not (out / "manifest.json").exists()
    monkeypatch.undo()
    prepare([str(folders[2])], out, shard_tokens=97, **OPTIONS)
    assert contents(out) == contents(folders[1])


class KilledError(BaseException):
    pass


def test_killed_between_shards_and_continued_with_another_bound(folders, tmp_path, monkeypatch):
    real = shards.write_shard

    def write_shard(path, *rest):
        if path.name == "train-00003.bin":
            raise KilledError
        return real(path, *rest)

    for bound, due in ((97, folders[1]), (2**28, folders[0])):
        out = tmp_path / str(bound)
        with monkeypatch.context() as patched:
            patched.setattr(shards, "write_shard", write_shard)
            with pytest.raises(KilledError):
                prepare([str(folders[2])], out, shard_tokens=60, **OPTIONS)
        (out / ".train-00003.bin.1.part").touch()
        prepare([str(folders[2])], out, shard_tokens=bound, **OPTIONS)
        assert contents(out) == contents(due)


def test_shards_of_other_origin_are_never_overwritten(folders, tmp_path):
    (tmp_path / "train-00000.bin").write_text("precious")
    with pytest.raises(UserError, match=r"holds train-00000\.bin of other origin; choose another --out"):
        prepare([str(folders[2])], tmp_path, **OPTIONS)


@pytest.mark.parametrize("change", [{"shards": []}, {"shards": [{"file": "a", "tokens": 0, "sha256": ""}]}])
def test_shards_that_contradict_their_split_are_refused(damaged, change):
    content = json.loads((damaged / "manifest.json").read_text())
    content["train"] |= change
    (damaged / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="the token counts of split and shards differ"):
        load_manifest(damaged)
