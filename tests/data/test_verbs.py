"""The words of the command line: what is printed, and one clear line for what is wrong."""

import json

import pytest

from data import bpe_files
from data.helpers import write_corpus
from depthbench.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A corpus that is read and never changed."""
    return write_corpus(tmp_path_factory.mktemp("source") / "corpus")


def said(capsys, *words):
    code = main(["data", *map(str, words)])
    return code, *capsys.readouterr()


def prepare(capsys, source, out, *words):
    return said(capsys, "prepare", source, "--validation-fraction", "0.2", "--out", out, *words)


def test_show_tells_vocabulary_and_bytes_a_token(capsys, source, tmp_path):
    code, shown, _ = prepare(capsys, source, tmp_path / "out", "--tokenizer", "bpe-280")
    assert code == 0 and "vocabulary 280, EOS 0, stored as uint16" in shown
    code, out, err = said(capsys, "show", tmp_path / "out", "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "") and facts["tokenizer"]["name"] == "bpe-280"
    code, again, _ = said(capsys, "show", tmp_path / "out")
    assert code == 0 and again == shown
    header, train, validation = again[again.index("\ntokenizer ") + 1 :].splitlines()[1:4]
    assert "bytes a token" in header
    for line, side in ((train, "train"), (validation, "validation")):
        ratio = facts[side]["bytes_per_token"]
        assert ratio == facts[side]["bytes"] / facts[side]["tokens"] > 1.2
        assert f" {ratio:.3f} " in line and line.startswith(side)
    assert f"tokenizer bpe-280 ({facts['tokenizer']['hash'][:8]})" in again


def test_eos_is_named_by_its_token(capsys, source, tmp_path):
    path = bpe_files.write(tmp_path / "mine.json", extra=[bpe_files.added(256, "<|stop|>")])
    words = ("--tokenizer", path, "--json")
    code, out, _ = prepare(capsys, source, tmp_path / "out", *words, "--eos", "<|stop|>")
    assert code == 0 and json.loads(out)["eos"] == 256
    code, out, err = prepare(capsys, source, tmp_path / "out", *words)
    assert (code, out) == (2, "") and "candidates: <|stop|>" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bpe-0"], "a BPE has from 258 (every byte, EOS and a merge) to 1048576 entries, got 'bpe-0'"),
        (["bpe-100"], "a BPE has from 258 (every byte, EOS and a merge)"),
        (["bpe-257"], "a BPE has from 258"),
        (["bpe-1048577"], "to 1048576 entries, got 'bpe-1048577'"),
        (["bpe-abc"], "unknown tokenizer 'bpe-abc'; did you mean 'bpe-8192'? valid:"),
        (["bpe--5"], "unknown tokenizer 'bpe--5'"),
        (["bpe-0300"], "unknown tokenizer 'bpe-0300'"),
        (["bpe-8192"], "too little training text for bpe-8192"),
        (["gone.json"], "cannot read tokenizer gone.json: No such file or directory"),
        (["empty.json"], "empty.json is no tokenizer.json of Hugging Face tokenizers"),
        (["."], "is a folder; name the file in it, such as tokenizer.json"),
        (["bytes.json"], "bytes.json has the name of another tokenizer, 'bytes'; rename the file"),
        (["bpe-300.json"], "bpe-300.json has the name of another tokenizer, 'bpe-300'; rename the file"),
        (["bytes", "--eos", "<eos>"], "--eos <eos> goes with a tokenizer.json; 'bytes' has an EOS of its own"),
        (["bpe-300", "--eos", "<eos>"], "'bpe-300' has an EOS of its own"),
        (["byts", "--eos", "<eos>"], "unknown tokenizer 'byts'; did you mean 'bytes'?"),
        (["whole.json", "--eos", "<eos>"], "whole.json has no token '<eos>'; name one with --eos TOKEN"),
        (["lower.json"], "lower.json changes text by Lowercase"),
    ],
    ids=" ".join,
)
def test_a_bad_tokenizer_is_one_clear_line(capsys, source, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name in ("bytes", "bpe-300", "whole"):
        bpe_files.write(tmp_path / f"{name}.json")
    bpe_files.write(tmp_path / "lower.json", normalizer={"type": "Lowercase"})
    (tmp_path / "empty.json").touch()
    code, out, err = prepare(capsys, source, "out", "--tokenizer", *words)
    *progress, line = err.splitlines()
    assert (code, out) == (2, "")
    assert line.startswith("depthbench: ") and message in line
    assert all(told.startswith("training bpe-8192") for told in progress)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_one_plain_file_is_refused_at_once(capsys, tmp_path):
    (tmp_path / "book.txt").write_text("once upon a time\n" * 100)
    code, out, err = prepare(capsys, tmp_path / "book.txt", tmp_path / "out", "--tokenizer", "bpe-8192")
    assert (code, out, err.count("\n")) == (2, "", 1) and "a single document, which cannot be split" in err
    assert not (tmp_path / "out").exists()
