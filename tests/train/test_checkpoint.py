"""Checkpoints under every mishap: cut, flipped, foreign, newer, unwritable; whatever happens, what was good stays good."""

import errno
import json
import os
import random
import resource
import zlib

import pytest
import torch
from safetensors.torch import save_file

from depthbench.errors import UserError
from depthbench.train import checkpoint
from depthbench.train.checkpoint import Position, checkpoints, load_checkpoint, save_checkpoint, set_aside
from train.runs import IDENTITY

POSITION = Position(step=5, minimum=1.5, high_steps=2, metrics_bytes=300, seconds=1.25)


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "model/weight": torch.randn(3, 4, generator=generator),
        "model/half": torch.randn(5, generator=generator).bfloat16(),
        "model/empty": torch.zeros(0, 2),
        "optimizer/weight/step": torch.tensor(5.0),
    }


def save(folder, step, seed=None, **changes):
    position = Position(step=step, minimum=1.0, metrics_bytes=10 * step, seconds=0.5, **changes)
    save_checkpoint(folder, IDENTITY, position, tensors(step if seed is None else seed))
    return checkpoints(folder)[0]


def load(folder, metrics=None):
    """What is loaded, and what was said."""
    said = []
    return load_checkpoint(folder, IDENTITY, said.append, metrics), said


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoints of steps 5 and 10."""
    save(tmp_path / "checkpoint", 5)
    save(tmp_path / "checkpoint", 10)
    return tmp_path / "checkpoint"


def test_position_and_tensors_come_back(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", IDENTITY, POSITION, tensors())
    (position, found), said = load(tmp_path / "checkpoint")
    assert position == POSITION and not said
    assert_same(found, tensors())


def test_nothing_there_is_no_checkpoint(tmp_path):
    assert load(tmp_path / "checkpoint") == (None, [])


def test_the_newest_two_are_kept(tmp_path):
    for step in (1, 2, 3, 10, 1000):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-0000000010.safetensors", "step-0000001000.safetensors"]
    assert load(tmp_path)[0][0].step == 1000


def test_it_is_written_beside_and_then_renamed(folder, monkeypatch):
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append((os.path.basename(target), names(folder)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    save(folder, 15)
    (target, there) = seen.pop()
    assert target == "step-0000000015.safetensors" and not seen
    assert [name for name in there if not name.startswith(".")] == ["step-0000000005.safetensors", "step-0000000010.safetensors"]
    assert len(there) == 3 and there[0].endswith(".part")


def test_tensors_that_share_memory_are_saved_apart(tmp_path):
    weight = torch.arange(6.0)
    shared = {"a": weight, "b": weight, "c": weight.view(2, 3), "d": weight[:2], "e": weight.view(2, 3).T}
    save_checkpoint(tmp_path, IDENTITY, POSITION, shared)
    assert_same(load(tmp_path)[0][1], shared)


def damaged(content, kind):
    """A checkpoint's bytes after a mishap."""
    return {
        "empty": b"",
        "cut in the header": content[:40],
        "cut in the tensors": content[:-3],
        "longer": content + b"\0",
        "noise": random.Random(0).randbytes(len(content)),
        "huge header": b"\xff" * 8 + content[8:],
        "a tensor flipped": content[:-2] + bytes([content[-2] ^ 4]) + content[-1:],
        "another shape": content.replace(b"[3,4]", b"[4,3]"),
        "another type": content.replace(b'"F32"', b'"I32"'),
        "text": b"not a checkpoint at all",
    }[kind]


KINDS = [
    *("empty", "cut in the header", "cut in the tensors", "longer", "noise", "huge header", "a tensor flipped"),
    *("another shape", "another type", "text"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_newest_one_falls_back_to_the_one_before(folder, kind):
    path = checkpoints(folder)[0]
    path.write_bytes(damaged(path.read_bytes(), kind))
    (position, found), said = load(folder)
    assert position.step == 5
    assert_same(found, tensors(5))
    assert len(said) == 1 and str(path) in said[0] and "damaged" in said[0] and "going back" in said[0]


def test_with_all_of_them_damaged_the_run_starts_over(folder):
    for path in checkpoints(folder):
        path.write_bytes(path.read_bytes()[:100])
    found, said = load(folder)
    assert found is None and len(said) == 2


def test_no_flipped_bit_anywhere_goes_unnoticed(tmp_path):
    """One bit of every byte: never a wrong position or tensor, never the excuse of another cell or a newer version."""
    path = save(tmp_path, 5)
    good = path.read_bytes()
    draw = random.Random(0)
    for place in range(len(good)):
        flipped = bytearray(good)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        found, said = load(tmp_path)
        if found is not None:  # a bit that says nothing, such as a blank's
            assert found[0] == Position(step=5, minimum=1.0, metrics_bytes=50, seconds=0.5), place
            assert_same(found[1], tensors(5))
        else:
            assert len(said) == 1, place


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"depthbench": "{"},
        {"depthbench": "{}"},
        {"depthbench": "{}", "depthbench_crc32": "x"},
        {"depthbench": "{}", "depthbench_crc32": str(zlib.crc32(b"{}"))},
        {"depthbench": "[]", "depthbench_crc32": str(zlib.crc32(b"[]"))},
    ],
    ids=str,
)
def test_garbage_metadata_falls_back(folder, metadata):
    save_file(tensors(), checkpoints(folder)[0], metadata=metadata)
    found, said = load(folder)
    assert found[0].step == 5 and len(said) == 1


@pytest.mark.parametrize("newest_only", [True, False])
def test_a_checkpoint_of_another_cell_is_refused_and_left_alone(folder, newest_only):
    save_checkpoint(folder, "2e" * 32, Position(step=15), tensors())
    if not newest_only:
        checkpoints(folder)[1].unlink()
    before = {path: path.read_bytes() for path in checkpoints(folder)}
    with pytest.raises(UserError, match="belongs to cell 2e2e2e2e2e2e, not 1d1d1d1d1d1d") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in checkpoints(folder)} == before


def test_a_newer_format_is_refused_and_left_alone(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    path = save(folder, 15)
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(UserError, match="was written by a newer DepthBench; upgrade"):
        load(folder)
    assert path.read_bytes() == before


ROWS = [b'{"step":%3d}\n' % step for step in range(1, 21)]  # 13 bytes each


@pytest.fixture
def counted(tmp_path):
    """Checkpoints of steps 5 and 10 that count on so many rows."""
    for step in (5, 10):
        save_checkpoint(tmp_path / "checkpoint", IDENTITY, Position(step=step, metrics_bytes=13 * step), tensors(step))
    return tmp_path / "checkpoint"


@pytest.mark.parametrize(
    ("content", "step", "why"),
    [
        (b"".join(ROWS), 10, ""),
        (b"".join(ROWS)[:130], 10, ""),
        (b"".join(ROWS)[:129], 5, "its metrics end at byte 130, and only 129 are there"),
        (b"".join(ROWS[1:]), None, "the metrics before byte 130 do not end with the row of step 10"),
        (b"".join(ROWS[:5]) + b"x" * 65, 5, "do not end with the row of step 10"),
        (b"".join(ROWS[:9]) + ROWS[9][:-1] + b" \n", 5, "do not end with the row of step 10"),  # no newline at byte 130
        (b"".join(ROWS[:9]) + b"[1, 2, 3, 4]\n", 5, "do not end with the row of step 10"),
        (b"", None, "only 0 are there"),
        (None, None, "only 0 are there"),
    ],
)
def test_one_that_counts_on_other_rows_than_there_are_is_passed_over(counted, tmp_path, content, step, why):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    found, said = load(counted, tmp_path / "metrics.jsonl")
    assert (found and found[0].step) == step
    assert len(said) == {10: 0, 5: 1, None: 2}[step] and (not said or why in said[0])


def test_of_long_metrics_only_the_tail_is_read(counted, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "TAIL_BYTES", 20)
    (tmp_path / "metrics.jsonl").write_bytes(b"no rows " * 12 + b"no" + b"".join(ROWS[7:10]) + b"0" * 1000)
    save_checkpoint(counted, IDENTITY, Position(step=10, metrics_bytes=98 + 39), tensors(10))
    assert load(counted, tmp_path / "metrics.jsonl")[0][0].step == 10


class Overtaken(Exception):
    """As a guard raises it."""


@pytest.mark.parametrize("at", [1, 2])
def test_a_guard_that_raises_leaves_everything_as_it_was(folder, at):
    left = folder / ".step-0000000015.safetensors.123.part"  # the other attempt is writing it
    left.write_bytes(b"half") if at == 1 else None
    before = {path: path.read_bytes() for path in folder.iterdir()}
    calls = []

    def guard():
        calls.append(names(folder))
        if len(calls) == at:
            raise Overtaken

    with pytest.raises(Overtaken):
        save_checkpoint(folder, IDENTITY, Position(step=15), tensors(), guard)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert len(calls[-1]) == len(before) + (at == 2)  # the second time it is written and has yet to take its place


def test_what_was_passed_over_is_set_aside_and_not_destroyed(folder):
    newest = checkpoints(folder)[0].read_bytes()
    set_aside(folder, after=5)
    assert names(folder) == ["step-0000000005.safetensors", "step-0000000010.safetensors.unusable"]
    assert (folder / "step-0000000010.safetensors.unusable").read_bytes() == newest
    set_aside(folder, after=5)
    save(folder, 7)
    save(folder, 8)
    assert [path.name for path in checkpoints(folder)] == ["step-0000000008.safetensors", "step-0000000007.safetensors"]


def full_disk(monkeypatch):
    def write_some(tensors, path, metadata):
        path.write_bytes(b"the first half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", write_some)


def failing(name, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    def mishap(monkeypatch):
        monkeypatch.setattr(os, name, fail)

    return mishap


@pytest.mark.parametrize("mishap", [full_disk, failing("replace", errno.EACCES), failing("fsync", errno.EIO)])
def test_a_failed_write_is_one_line_and_leaves_the_old_ones(folder, monkeypatch, mishap):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    mishap(monkeypatch)
    with pytest.raises(UserError, match=r"cannot save .*step-0000000015\.safetensors: \w.*; mend that") as caught:
        save(folder, 15)
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert load(folder)[0][0].step == 10


def test_a_real_limit_on_writing_is_the_same_one_line(folder):
    """No patch: the system refuses, through safetensors, whose error is its own."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot save .*File too large"):
            save_checkpoint(folder, IDENTITY, Position(step=15), {"model/weight": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "checkpoint").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot save .*File exists"):
        save(tmp_path / "checkpoint", 5)
    assert (tmp_path / "checkpoint").read_text() == "in the way"


def test_an_interrupt_while_writing_leaves_no_half_file(folder, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    before = names(folder)
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 15)
    assert names(folder) == before


def test_what_a_killed_attempt_left_goes_before_the_next_write(folder, monkeypatch):
    left = [folder / ".step-0000000015.safetensors.123.part", folder / ".tmpAbC123"]
    for path in left:
        path.write_bytes(b"half")
    full_disk(monkeypatch)  # not after a write has worked: its space may be what is missing
    with pytest.raises(UserError):
        save(folder, 15)
    assert not any(path.exists() for path in left)


def test_the_metadata_can_be_read_by_others(folder):
    raw = checkpoints(folder)[0].read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    content = json.loads(header["__metadata__"]["depthbench"])
    assert (content["format"], content["identity"], content["step"]) == (1, IDENTITY, 10)
