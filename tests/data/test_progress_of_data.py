"""What is said while the work is under way, and who does it."""

import json
import math
import os
import random

import pytest

from depthbench.data import crew, prepare, writer
from depthbench.data.crew import tokenizer_threads
from depthbench.data.workers import in_order, tell
from depthbench.progress import Progress


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_tells_is_heard_with_its_number(workers):
    heard = []
    assert list(in_order(tell, ["a", "b", "c"], workers, lambda *what: heard.append(what))) == [None] * 3
    assert sorted(heard) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(in_order(tell, ["a", "b", "c"], workers)) == [None] * 3  # nobody has to listen


def test_one_large_file_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    rng = random.Random(0)
    rows = [json.dumps({"text": "".join(rng.choices("abc ", k=9000))}) for _ in range(90)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    monkeypatch.setattr(writer, "TELL_SECONDS", 0)
    monkeypatch.setattr(writer, "BATCH", 9000)
    monkeypatch.setattr(crew, "Progress", lambda *words, **more: Progress(*words, interval=0, **more))
    prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", validation_fraction=0.2)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 50 and " eta " in lines[5]
    assert lines[-1].startswith("preparing 100%  90 documents  810,090 tokens  ")
    shares = [int(line.split("%")[0].split()[-1]) for line in lines]
    assert shares == sorted(shares) and len(set(shares)) > 1


def test_an_unknown_total(capsys):
    with Progress("reading", math.inf, interval=0) as progress:
        progress.update(5, "5 documents")
        progress.total = 7
        progress.update(7, "7 documents")
    assert capsys.readouterr().err.splitlines() == ["reading  5 documents  0s", "reading 100%  7 documents  0s"]


def test_threads_are_the_users_choice_first(monkeypatch):
    names = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for threads, due in ((1, ("false", "1")), (3, ("true", "3"))):
        with tokenizer_threads(threads):
            assert tuple(os.environ.get(name) for name in names) == due
    assert not set(names) & set(os.environ)
    monkeypatch.setenv("RAYON_NUM_THREADS", "5")
    with tokenizer_threads(2):
        assert tuple(os.environ.get(name) for name in names) == ("true", "5")
    assert os.environ["RAYON_NUM_THREADS"] == "5"
