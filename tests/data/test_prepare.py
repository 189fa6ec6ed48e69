"""From sources to token files: what is in them, and what is refused."""

import gzip
import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.helpers import contents, snapshot, texts
from depthbench.data import TokenData, load_manifest, prepare
from depthbench.data.parts import is_validation
from depthbench.errors import UserError

FRACTION = 0.2
FILES = {".lock", "manifest.json", "token_bytes.npy", "train.bin", "validation.bin"}


def run(sources, out, **options):
    options = {"validation_fraction": FRACTION, "quiet": True} | options
    return prepare([str(source) for source in ([sources] if isinstance(sources, Path) else sources)], out, **options)


def in_validation(text):
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256 < FRACTION


def write_rows(path, documents):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


def test_every_document_lands_on_the_side_of_its_hash_in_order(corpus, tmp_path, small_groups):
    manifest = run(corpus, tmp_path / "out")
    assert set(contents(tmp_path / "out")) == FILES
    documents = [path.read_text(encoding="utf-8") for path in sorted(corpus.rglob("*")) if path.is_file()]
    train, validation = texts(tmp_path / "out", "train"), texts(tmp_path / "out", "validation")
    assert train == [text for text in documents if not in_validation(text)]
    assert validation == [text for text in documents if in_validation(text)]
    for split, found in ((manifest.train, train), (manifest.validation, validation)):
        size = sum(len(text.encode()) for text in found)
        assert (split.documents, split.bytes, split.tokens) == (len(found), size, size + len(found))
        (shard,) = split.shards
        assert shard.sha256 == split.sha256 == hashlib.sha256((tmp_path / "out" / shard.file).read_bytes()).hexdigest()


def test_manifest_tells_where_the_tokens_came_from(corpus, tmp_path):
    (corpus / "notes.pdf").write_text("x")
    manifest = run(corpus, tmp_path / "out")
    assert manifest == load_manifest(tmp_path / "out")
    assert (manifest.tokenizer, manifest.vocab_size, manifest.eos, manifest.dtype) == ("bytes", 257, 256, "uint16")
    (source,) = manifest.sources
    assert source.name == "corpus" and len(source.files) == 60
    for name, sha256 in source.files.items():
        assert sha256 == hashlib.sha256((corpus / name).read_bytes()).hexdigest()
    assert manifest.ignored == {".pdf": 1}
    assert manifest.created_by.startswith("depthbench")
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_plain_packed_and_json_lines_hold_the_same_documents(tmp_path):
    documents = [f"document {number}\nwith two lines ü" for number in range(40)]
    for form in ("plain", "packed", "rows", "packed rows"):
        (tmp_path / form).mkdir()
    for number, text in enumerate(documents):
        (tmp_path / "plain" / f"{number:02d}.txt").write_text(text, encoding="utf-8")
        (tmp_path / "packed" / f"{number:02d}.md.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    rows = write_rows(tmp_path / "rows" / "a.jsonl", documents)
    (tmp_path / "packed rows" / "a.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes(), mtime=0))
    found = {form: run(tmp_path / form, tmp_path / f"out {form}") for form in ("plain", "packed", "rows", "packed rows")}
    assert len({manifest.fingerprint for manifest in found.values()}) == 1
    assert found["packed rows"].sources[0].files == {
        "a.jsonl.gz": hashlib.sha256((tmp_path / "packed rows/a.jsonl.gz").read_bytes()).hexdigest()
    }


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_split_depends_on_neither_order_nor_company(shuffler: random.Random):
    documents = [f"document {number}" for number in range(50)]
    for text in documents:
        assert is_validation(text.encode(), FRACTION) == in_validation(text)
    shuffler.shuffle(documents)
    assert {text for text in documents if is_validation(text.encode(), FRACTION)} == {
        text for text in sorted(documents) if in_validation(text)
    }


def test_a_larger_fraction_keeps_the_validation_documents_of_a_smaller_one(corpus, tmp_path):
    shares = []
    for fraction in (0.1, 0.3, 0.6):
        run(corpus, tmp_path / str(fraction), validation_fraction=fraction)
        shares.append(set(texts(tmp_path / str(fraction), "validation")))
    assert shares[0] < shares[1] < shares[2]


def test_the_fraction_is_kept_on_average():
    inside = sum(is_validation(str(number).encode(), 0.05) for number in range(20_000))
    assert abs(inside - 1000) < 6 * np.sqrt(20_000 * 0.05 * 0.95)


def test_duplicates_stay_on_one_side(tmp_path):
    documents = [f"document {number % 20}" for number in range(200)]
    run(write_rows(tmp_path / "a.jsonl", documents), tmp_path / "out")
    train, validation = texts(tmp_path / "out", "train"), texts(tmp_path / "out", "validation")
    assert len(train) + len(validation) == 200
    assert not set(train) & set(validation)
    assert all(count == 10 for count in (train.count(text) or validation.count(text) for text in documents))


def test_fingerprint_does_not_depend_on_place_time_or_name(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "elsewhere" / "renamed")
    for path in (tmp_path / "elsewhere").rglob("*.txt"):
        os.utime(path, (1, 1))
    assert run(corpus, tmp_path / "a").fingerprint == run(tmp_path / "elsewhere" / "renamed", tmp_path / "b").fingerprint
    (corpus / "part0" / "doc00.txt").write_text("another text")
    assert run(corpus, tmp_path / "c").fingerprint != run(tmp_path / "elsewhere" / "renamed", tmp_path / "d").fingerprint


def test_nothing_is_silently_lost(corpus, tmp_path):
    (corpus / "latin1.txt").write_bytes("grün".encode("latin-1"))
    (corpus / "binary.py").write_bytes(b"\x7fELF\0\0")
    (corpus / "packed.txt.gz").write_bytes(gzip.compress(b"\xff", mtime=0))
    (corpus / "empty.md").write_bytes(b"")
    (corpus / "image.png").write_bytes(b"x")
    write_rows(corpus / "rows.jsonl", ["", "one", ""])
    manifest = run(corpus, tmp_path / "out")
    assert {file.file: file.reason for file in manifest.skipped} == {
        "corpus/binary.py": "binary: contains NUL bytes",
        "corpus/latin1.txt": "not UTF-8 at byte 2",
        "corpus/packed.txt.gz": "not UTF-8 at byte 0",
    }
    assert manifest.empty_documents == 3
    assert manifest.ignored == {".png": 1}
    assert manifest.train.documents + manifest.validation.documents == 61
    assert "latin1.txt" in manifest.sources[0].files  # known too, so that mending it later is noticed


def test_sources_keep_their_order_and_may_share_a_name(tmp_path):
    for folder, word in (("x/data", "first"), ("y/data", "second")):
        (tmp_path / folder).mkdir(parents=True)
        write_rows(tmp_path / folder / "a.jsonl", [f"{word} {number}" for number in range(20)])
        (tmp_path / folder / "bad.txt").write_bytes(b"\xff")
    manifest = run([tmp_path / "y/data", tmp_path / "x/data"], tmp_path / "out")
    assert [text.split()[0] for text in texts(tmp_path / "out", "train")] == sorted(
        (text.split()[0] for text in texts(tmp_path / "out", "train")), reverse=True
    )
    assert [source.name for source in manifest.sources] == ["data", "data"]
    assert manifest.sources[0].files != manifest.sources[1].files
    assert len(manifest.skipped) == 2


def test_out_inside_the_corpus(corpus):
    first = run(corpus, corpus / "tokens")
    assert run(corpus, corpus / "tokens") == first


def test_progress_shows_megabytes_per_second(corpus, tmp_path, capsys):
    run(corpus, tmp_path / "a", quiet=False)
    assert "preparing 100%" in (told := capsys.readouterr().err) and "MB/s" in told
    run(corpus, tmp_path / "b")
    assert capsys.readouterr() == ("", "")


# --- calling it again -----------------------------------------------------------------------------------------------


def test_a_finished_folder_is_returned_as_it_is(corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = run(corpus, out)
    before = snapshot(out)
    for path in corpus.rglob("*.txt"):
        path.touch()  # another time is not another file
    monkeypatch.chdir(tmp_path)
    assert run(Path("corpus"), Path("out"), workers=3) == first
    assert snapshot(out) == before


def add(corpus):
    (corpus / "new.txt").write_text("new")


def remove(corpus):
    (corpus / "part0" / "doc00.txt").unlink()


def change(corpus):
    path = corpus / "part0" / "doc00.txt"
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-2] + b"!\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time as before: only the content tells
    assert path.stat().st_size == len(content)


@pytest.mark.parametrize(
    ("edit", "options", "message"),
    [
        (add, {}, r"corpus/new\.txt is new since then"),
        (remove, {}, r"corpus/part0/doc00\.txt is gone since then"),
        (change, {}, r"corpus/part0/doc00\.txt has changed since then"),
        (None, {"validation_fraction": 0.3}, "validation fraction 0.2 there, 0.3 asked for"),
        (None, {"sources": ["corpus", "corpus/part0"]}, "sources corpus there, corpus, part0 asked for"),
    ],
)
def test_other_input_for_a_finished_folder_is_refused(corpus, tmp_path, monkeypatch, edit, options, message):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    run(corpus, out)
    before = snapshot(out)
    if edit:
        edit(corpus)
    with pytest.raises(UserError, match=rf"already holds other tokens: {message}; choose another --out"):
        run(**{"sources": ["corpus"], "out": out} | options)
    assert snapshot(out) == before


def test_another_tokenizer_for_a_finished_folder_is_refused(corpus, tmp_path, monkeypatch):
    run(corpus, tmp_path / "out")
    from depthbench.data import tokenizer

    class Other(tokenizer.ByteTokenizer):
        name = "other"
        hash = "0" * 64

    monkeypatch.setitem(tokenizer.TOKENIZERS, "other", Other)
    with pytest.raises(UserError, match="tokenizer 'bytes' there, 'other' asked for"):
        run(corpus, tmp_path / "out", tokenizer="other")


def test_a_large_vocabulary_is_stored_in_four_bytes(corpus, tmp_path, monkeypatch):
    from depthbench.data import tokenizer

    class Wide(tokenizer.ByteTokenizer):
        name, hash, vocab_size, eos = "wide", "1" * 64, 70_000, 69_999

    monkeypatch.setitem(tokenizer.TOKENIZERS, "wide", Wide)
    manifest = run(corpus, tmp_path / "out", tokenizer="wide")
    assert manifest.dtype == "uint32"
    data = TokenData.open(tmp_path / "out")
    assert data.train.dtype == np.dtype("<u4") and data.train[-1] == 69_999
    assert (data.train == 69_999).sum() == manifest.train.documents
    assert data.bytes_of(data.train) == manifest.train.bytes


def test_a_damaged_folder_is_not_taken_for_finished(corpus, tmp_path):
    run(corpus, tmp_path / "out")
    (tmp_path / "out" / "train.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.bin has 0 bytes, its manifest says .*delete it and prepare it again"):
        run(corpus, tmp_path / "out")


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"\xff\xfe", b"GIF89a\0"])
def test_a_named_file_that_is_no_text_is_an_error(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt is no text \(.*\); give UTF-8 text, or leave it out"):
        run(tmp_path / "a.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', r"a\.jsonl, line 2: no key \"text\""),
        ("a.jsonl", b'{"text": "x"}\noops\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.txt.gz", gzip.compress(b"some text" * 99, mtime=0)[:-9], r"a\.txt\.gz: broken gzip"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_damaged_files_are_errors_and_mending_them_is_enough(corpus, tmp_path, small_groups, name, content, message, named):
    (corpus / name).write_bytes(content)
    sources = [corpus / "part0", corpus / name] if named else [corpus]
    with pytest.raises(UserError, match=message) as error:
        run(sources, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "manifest.json").exists()
    (corpus / name).write_bytes(gzip.compress(b"fine", mtime=0) if name.endswith("gz") else b'{"text": "fine"}\n')
    run(sources, tmp_path / "out")
    assert "fine" in texts(tmp_path / "out", "train") + texts(tmp_path / "out", "validation")


def test_no_documents_at_all(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "empty.txt").write_bytes(b"")
    (tmp_path / "corpus" / "binary.txt").write_bytes(b"\0")
    with pytest.raises(UserError, match="the sources hold no documents: every file is empty or no text"):
        run(tmp_path / "corpus", tmp_path / "out")


@pytest.mark.parametrize(("fraction", "side"), [(1e-9, "validation"), (1 - 1e-9, "train")])
def test_an_empty_side_of_the_split(corpus, tmp_path, fraction, side):
    with pytest.raises(UserError, match=f"corpus too small: none of 60 documents falls into {side}.*give more documents"):
        run(corpus, tmp_path / "out", validation_fraction=fraction)
    assert not (tmp_path / "out" / "manifest.json").exists()
    run(corpus, tmp_path / "out")  # a mended call needs no other folder


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan"), float("inf")])
def test_impossible_fractions(corpus, tmp_path, fraction):
    with pytest.raises(UserError, match="validation fraction must lie between 0 and 1"):
        run(corpus, tmp_path / "out", validation_fraction=fraction)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1"),
        ({"tokenizer": "gpt"}, "unknown tokenizer 'gpt'; valid: .*bytes"),
        ({"sources": []}, "no source given"),
        ({"sources": ["no such file.txt"]}, "does not exist"),
    ],
)
def test_bad_arguments_leave_no_folder(corpus, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(**{"sources": [corpus], "out": tmp_path / "out"} | options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["train.bin", "validation.bin", "token_bytes.npy", "parts/mine.txt"])
def test_files_of_other_origin_are_never_overwritten(corpus, tmp_path, name):
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("precious")
    before = snapshot(tmp_path / "out")
    with pytest.raises(UserError, match=rf"holds {name.split('/')[0]} of other origin; choose another --out"):
        run(corpus, tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


def test_other_files_in_the_folder_are_left_alone(corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("precious")
    run(corpus, tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"


def test_out_is_a_file(corpus, tmp_path):
    (tmp_path / "out").write_text("precious")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(UserError, match="cannot write to"):
            run(corpus, out)
    assert (tmp_path / "out").read_text() == "precious"
