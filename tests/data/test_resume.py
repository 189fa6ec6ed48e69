"""Preparing is killed, continued, spread over processes and run twice at once: the bytes are always the same."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from data.helpers import contents, write_corpus
from depthbench.data import load_manifest, parts, prepare
from depthbench.errors import UserError

OPTIONS = {"validation_fraction": 0.2, "quiet": True}


@pytest.fixture
def whole(corpus, tmp_path, small_groups):
    """What an uninterrupted call makes."""
    prepare([str(corpus)], tmp_path / "whole", **OPTIONS)
    return contents(tmp_path / "whole")


class KilledError(BaseException):
    """Not an `Exception`: nothing may catch it."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_at_any_write_loses_nothing(corpus, tmp_path, monkeypatch, whole, when):
    """Every file appears by one rename, so the renames are between all the states that a kill can leave."""
    real = os.replace
    left = 0

    def replace(source, target):
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            raise KilledError
        real(source, target)
        if left == 0:
            raise KilledError

    monkeypatch.setattr(os, "replace", replace)
    renames = len(list((tmp_path / "whole").glob("*"))) - 1 + 3 * 6  # the files of the folder and of six parts
    for stop in range(1, renames + 1):
        left = stop
        out = tmp_path / f"out{stop}"
        with pytest.raises(KilledError):
            prepare([str(corpus)], out, **OPTIONS)
        prepare([str(corpus)], out, **OPTIONS)
        assert contents(out) == whole
    left = renames + 1
    prepare([str(corpus)], tmp_path / "last", **OPTIONS)  # there are no more renames than we counted
    assert left == 1


def test_finished_parts_are_not_made_again(corpus, tmp_path, monkeypatch, small_groups):
    (corpus / "a.txt").write_bytes(b"\xff")  # what is known about a part is kept too
    (corpus / "b.txt").write_bytes(b"")
    complete = prepare([str(corpus)], tmp_path / "whole", **OPTIONS)
    out, made = tmp_path / "out", []
    real = parts.tokenize

    def tokenize(job, part, files):
        made.append(job.number)
        if len(made) == 4:
            raise KeyboardInterrupt
        real(job, part, files)

    monkeypatch.setattr(parts, "tokenize", tokenize)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(corpus)], out, **OPTIONS)
    assert not (out / "manifest.json").exists()
    assert prepare([str(corpus)], out, **OPTIONS) == complete == load_manifest(out)
    assert made[:5] == [0, 1, 2, 3, 3] and sorted(set(made)) == list(range(made[-1] + 1)) and len(made) == made[-1] + 2
    assert contents(out) == contents(tmp_path / "whole")


def test_a_file_changed_before_continuing_is_read_again(corpus, tmp_path, monkeypatch, whole):
    out = tmp_path / "out"
    real = parts.tokenize
    monkeypatch.setattr(parts, "tokenize", lambda job, *rest: real(job, *rest) if job.number < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare([str(corpus)], out, **OPTIONS)
    monkeypatch.setattr(parts, "tokenize", real)
    path = corpus / "part0" / "doc00.txt"
    path.write_bytes(path.read_bytes()[::-1].decode("latin-1").encode("ascii", "replace"))  # of the same size
    changed = prepare([str(corpus)], out, **OPTIONS)
    assert changed.fingerprint == prepare([str(corpus)], tmp_path / "fresh", **OPTIONS).fingerprint
    assert contents(out) == contents(tmp_path / "fresh") != whole


def test_unfinished_work_of_other_options_is_not_mixed_in(corpus, tmp_path, monkeypatch, whole):
    out = tmp_path / "out"
    real = parts.tokenize
    monkeypatch.setattr(parts, "tokenize", lambda job, *rest: real(job, *rest) if job.number < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare([str(corpus)], out, validation_fraction=0.5, quiet=True)
    monkeypatch.setattr(parts, "tokenize", real)
    prepare([str(corpus)], out, **OPTIONS)
    assert contents(out) == whole


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), Path.unlink])
@pytest.mark.parametrize("ending", ["train", "validation", "json"])
def test_a_damaged_part_is_made_again(corpus, tmp_path, monkeypatch, whole, damage, ending):
    out = tmp_path / "out"
    real = parts.tokenize
    monkeypatch.setattr(parts, "tokenize", lambda job, *rest: real(job, *rest) if job.number < 2 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare([str(corpus)], out, **OPTIONS)
    monkeypatch.setattr(parts, "tokenize", real)
    for path in (out / "parts").glob(f"*.{ending}"):
        damage(path)
    prepare([str(corpus)], out, **OPTIONS)
    assert contents(out) == whole


def test_what_a_kill_left_half_written_is_cleared_away(corpus, tmp_path, whole):
    out = tmp_path / "out"
    out.mkdir()
    for name in (".lock", ".train.bin.123.part", ".manifest.json.123.part"):
        (out / name).touch()
    prepare([str(corpus)], out, **OPTIONS)
    assert contents(out) == whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_one_clear_line_and_costs_nothing(corpus, tmp_path, monkeypatch, whole, number):
    written = []

    def fsync(descriptor):
        written.append(descriptor)
        if len(written) == 10:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match=rf"cannot write to .*out: {os.strerror(number)}; mend that and repeat to continue"):
        prepare([str(corpus)], tmp_path / "out", **OPTIONS)
    prepare([str(corpus)], tmp_path / "out", **OPTIONS)
    assert contents(tmp_path / "out") == whole


def test_the_number_of_workers_changes_nothing(corpus, tmp_path, whole):
    prepare([str(corpus)], tmp_path / "out", workers=3, **OPTIONS)
    assert contents(tmp_path / "out") == whole


def test_an_error_in_a_worker_arrives(corpus, tmp_path, small_groups):
    (corpus / "rows.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1: no key"):
        prepare([str(corpus)], tmp_path / "out", workers=2, **OPTIONS)


def test_a_second_process_waits_and_finds_the_work_done(corpus, tmp_path, capsys):
    from depthbench.data.prepare import locked

    out = tmp_path / "out"
    out.mkdir()
    with locked(out, quiet=False):
        second = threading.Thread(target=prepare, args=([str(corpus)], out), kwargs={"validation_fraction": 0.2})
        second.start()
        second.join(0.2)
        assert second.is_alive() and not (out / "manifest.json").exists()
    second.join(10)
    assert (out / "manifest.json").exists()
    assert f"waiting for another process that prepares {out}" in capsys.readouterr().err


SCRIPT = """
import sys
from pathlib import Path
from depthbench.data import parts, prepare
if __name__ == "__main__":
    parts.GROUP_BYTES = 4096
    print("ready", flush=True)
    prepare([sys.argv[1]], Path(sys.argv[2]), validation_fraction=0.2, workers=int(sys.argv[3]), quiet=True)
"""


@pytest.fixture
def start(tmp_path):
    """Starts `prepare` in a process of its own, with a group for each file so that it takes a while."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    started = []

    def start(corpus, out, workers=1):
        command = [sys.executable, str(script), str(corpus), str(out), str(workers)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_processes_at_once(tmp_path, start):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    both = [start(corpus, out), start(corpus, out)]
    for process in both:
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    prepare([str(corpus)], tmp_path / "alone", **OPTIONS)
    assert contents(out) == contents(tmp_path / "alone")


def test_killed_again_and_again(tmp_path, start):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"
    for number in range(3):
        process = start(corpus, out)
        while len(list(out.glob("parts/*.json"))) < 3 + 20 * number and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    prepare([str(corpus)], out, **OPTIONS)
    prepare([str(corpus)], tmp_path / "alone", **OPTIONS)
    assert contents(out) == contents(tmp_path / "alone")
