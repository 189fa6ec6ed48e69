"""Training a BPE: on training documents alone, on a bounded sample, and to the same bytes on every machine."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from data.helpers import write_corpus
from depthbench.data import learn as room
from depthbench.data.bpe import read_tokenizer
from depthbench.data.learn import cut_runs, learn, sample
from depthbench.data.parts import is_validation
from depthbench.data.sources import expand
from depthbench.errors import UserError


def files(*sources):
    return [file for source in expand([str(source) for source in sources]) for file in source.files]


def write_rows(path, documents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def learned(tmp_path, *sources, entries=300, fraction=0.2):
    (tmp_path / "tokenizer.json").write_bytes(learn(files(*sources), entries, fraction, quiet=True))
    return read_tokenizer(tmp_path / "tokenizer.json", f"bpe-{entries}")


def test_it_has_as_many_entries_as_asked_for_and_keeps_every_text(corpus, tmp_path):
    tokenizer = learned(tmp_path, corpus)
    assert tokenizer.vocab_size == 300
    lengths = tokenizer.token_bytes()
    assert lengths[tokenizer.eos] == 0 and (lengths == 1).sum() == 256 and (lengths > 1).sum() == 43
    for text in ("wörd7 wörd9\n", " \t\r\n  x", "\x00\x7f\u2028 日本語 🙂 \ufeff", "<|endoftext|>", "naïve\u0308"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.eos not in tokenizer.encode(text)
    text = "wörd123 " * 20
    assert len(tokenizer.encode(text)) < len(text.encode()) / 2


def test_the_same_bytes_whatever_the_number_of_threads(corpus):
    code = (
        "import sys; from depthbench.data.learn import learn; from depthbench.data.sources import expand;"
        "sys.stdout.buffer.write(learn(expand([sys.argv[1]])[0].files, 300, 0.2, True))"
    )
    due = learn(files(corpus), 300, 0.2, quiet=True)
    for threads in ("1", "5"):
        environment = os.environ | {"RAYON_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code, str(corpus)], capture_output=True, check=True, env=environment)
        assert done.stdout == due
    with_off = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    assert subprocess.run([sys.executable, "-c", code, str(corpus)], capture_output=True, check=True, env=with_off).stdout == due


def test_neither_place_nor_order_of_the_sources_matters_to_one_that_is_used_whole(corpus, tmp_path):
    other = write_corpus(tmp_path / "elsewhere")
    assert learn(files(corpus), 300, 0.2, quiet=True) == learn(files(other), 300, 0.2, quiet=True)
    parts = [corpus / "part0", corpus / "part1", corpus / "part2"]
    assert learn(files(*parts), 300, 0.2, quiet=True) == learn(files(*parts[::-1]), 300, 0.2, quiet=True)


def test_validation_documents_have_no_part_in_it(tmp_path):
    documents = [f"{number} common words" for number in range(100)]
    held_out = [text for text in documents if is_validation(text.encode(), 0.2)]
    assert 5 < len(held_out) < 50
    path = write_rows(tmp_path / "a.jsonl", documents)
    assert "".join(sample(files(path), 0.2)) == "".join(text for text in documents if text not in held_out)
    without = write_rows(tmp_path / "b.jsonl", [text for text in documents if text not in held_out])
    assert learn(files(path), 262, 0.2, True) == learn(files(without), 262, 0.2, True)


def test_text_that_looks_like_eos_is_learned_as_text(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [f"{number}<|endoftext|>" * 9 for number in range(50)])
    tokenizer = learned(tmp_path, path, entries=270)
    ids = tokenizer.encode("1<|endoftext|>2")
    assert tokenizer.eos not in ids and tokenizer.decode(ids) == "1<|endoftext|>2"


# --- the sample -----------------------------------------------------------------------------------------------------


def test_the_sample_is_bounded_and_takes_from_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "SAMPLE_BYTES", 8000)
    for number in range(20):
        write_rows(tmp_path / "corpus" / f"{number:02d}.jsonl", [f"<{number:02d}>" + "x" * 96] * 50)
    text = "".join(sample(files(tmp_path / "corpus"), 1e-9))
    assert len(text) == 8000
    taken = [number for number in range(20) if f"<{number:02d}>" in text]
    assert [text.count(f"<{number:02d}>") for number in taken] == [10] * 8
    by_hash = sorted(range(20), key=lambda number: hashlib.sha256(f"{number:02d}.jsonl".encode()).digest())
    assert taken == sorted(by_hash[:8])
    assert "".join(sample(files(tmp_path / "corpus"), 1e-9)) == text


def test_a_long_document_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "SAMPLE_BYTES", 1001)
    (tmp_path / "a.txt").write_text("ö" * 5000, encoding="utf-8")
    assert "".join(sample(files(tmp_path / "a.txt"), 1e-9)) == "ö" * 500


def test_files_that_are_no_text_are_passed_over_unless_they_were_named(corpus, tmp_path):
    due = learn(files(corpus), 300, 0.2, quiet=True)
    (corpus / "binary.txt").write_bytes(b"\0")
    (corpus / "empty.txt").write_bytes(b"")
    assert learn(files(corpus), 300, 0.2, quiet=True) == due
    with pytest.raises(UserError, match=r"binary\.txt is no text"):
        learn(files(corpus / "binary.txt"), 300, 0.2, quiet=True)
    (corpus / "rows.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1: no key"):
        learn(files(corpus), 300, 0.2, quiet=True)


@pytest.mark.parametrize("character", ["x", " ", "\n", "ö"])
def test_runs_are_cut_so_that_a_merge_stays_cheap(character):
    for length in (0, 1, 127, 128, 129, 1000):
        text = f"some words {character * length} and more\n"
        found = list(cut_runs(text))
        assert "".join(found) == text
        assert max(len(run) for piece in found for run in piece.split(" ")) <= 128
        assert all(character * 129 not in piece for piece in found)
    assert list(cut_runs("as it is\n")) == ["as it is\n"]


# --- errors and progress --------------------------------------------------------------------------------------------


def test_too_little_text_says_how_far_it_goes(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [f"{number} a few words" for number in range(30)])
    with pytest.raises(UserError, match=r"too little training text for bpe-8192: it gives (\d+) entries") as error:
        learn(files(path), 8192, 0.2, quiet=True)
    possible = int(str(error.value).split(" gives ")[1].split()[0])
    assert 257 < possible < 400
    assert learned(tmp_path, path, entries=possible).vocab_size == possible


@pytest.mark.parametrize("reason", [KeyboardInterrupt, MemoryError("no")])
def test_what_ends_the_reading_ends_the_training(corpus, monkeypatch, reason):
    def texts(*_):
        yield "a text"
        raise reason

    monkeypatch.setattr(room, "sample", texts)
    with pytest.raises(reason if isinstance(reason, type) else type(reason)):
        learn(files(corpus), 300, 0.2, quiet=True)


def test_progress(corpus, capsys):
    learn(files(corpus), 300, 0.2, quiet=False)
    assert "training bpe-300 100%  merging" in capsys.readouterr().err
    learn(files(corpus), 300, 0.2, quiet=True)
    assert capsys.readouterr() == ("", "")
