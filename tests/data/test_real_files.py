"""Parquet, Zstandard and texts of any length: what is read, counted and refused."""

import gzip
import hashlib
import json

import pyarrow
import pytest
from pyarrow import parquet

from data import bpe_files
from data.helpers import contents, texts
from data.real_files import write_parquet, zstd
from depthbench.data import bpe, describe, load_manifest, long_text, prepare, writer
from depthbench.data.documents import NotTextError, open_hashed, read_documents
from depthbench.data.long_text import LongText
from depthbench.errors import UserError

DOCUMENTS = [f"document {number}\nwith two lines ü" for number in range(50)]
OPTIONS = {"validation_fraction": 0.2, "quiet": True}


def read(path, column="text"):
    with open_hashed(path) as raw:
        found = list(read_documents(raw, path, column))
    assert raw.hash.hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rows(documents, key="text"):
    return "".join(json.dumps({key: text}) + "\n" for text in documents).encode()


def test_parquet_and_zstandard_hold_the_documents_of_json_lines(tmp_path):
    for name, content in (("a.jsonl", rows(DOCUMENTS)), ("b.jsonl.zst", zstd(rows(DOCUMENTS)))):
        (tmp_path / name).write_bytes(content)
    write_parquet(tmp_path / "c.parquet", DOCUMENTS, id=list(range(50)))
    found = {path.name: prepare([str(path)], tmp_path / f"{path.name} out", **OPTIONS) for path in sorted(tmp_path.glob("?.*"))}
    assert len(found) == 3 and len({manifest.fingerprint for manifest in found.values()}) == 1
    for name, manifest in found.items():
        assert manifest.sources[0].files == {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}


@pytest.mark.parametrize("end", [".txt", ".md", ".py"])
def test_a_plain_file_in_zstandard_is_one_document(tmp_path, end):
    (tmp_path / f"a{end}.zst").write_bytes(zstd("grün\r\n".encode()) + zstd(b"second frame"))
    assert read(tmp_path / f"a{end}.zst") == ["grün\r\nsecond frame"]


def test_the_text_column_is_the_users_choice(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_bytes(rows(DOCUMENTS[:25], "body"))
    write_parquet(tmp_path / "corpus" / "b.parquet", DOCUMENTS[25:], "body", text=list(range(25)))
    manifest = prepare([str(tmp_path / "corpus")], tmp_path / "out", text_column="body", **OPTIONS)
    assert sorted(texts(tmp_path / "out", "train") + texts(tmp_path / "out", "validation")) == sorted(DOCUMENTS)
    assert manifest.text_column == "body" and describe(tmp_path / "out")["text_column"] == "body"
    with pytest.raises(UserError, match="text column 'body' there, 'text' asked for; choose another --out"):
        prepare([str(tmp_path / "corpus")], tmp_path / "out", **OPTIONS)


@pytest.mark.parametrize("kind", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())])
def test_columns_of_text_in_other_encodings(tmp_path, kind):
    write_parquet(tmp_path / "a.parquet", pyarrow.array(["x", None, "y"], pyarrow.string()).cast(kind))
    assert read(tmp_path / "a.parquet") == ["x", None, "y"]


def test_rows_without_text_are_counted(tmp_path, capsys):
    write_parquet(tmp_path / "a.parquet", [None, "", *DOCUMENTS, None, ""])
    manifest = prepare([str(tmp_path / "a.parquet")], tmp_path / "out", **OPTIONS)
    assert (manifest.null_documents, manifest.empty_documents) == (2, 2) and load_manifest(tmp_path / "out") == manifest
    assert manifest.train.documents + manifest.validation.documents == 50
    from depthbench.cli import main

    assert main(["data", "show", str(tmp_path / "out")]) == 0
    assert "left out 2 empty documents\nleft out 2 rows without text" in capsys.readouterr().out


def test_what_is_usual_is_not_in_the_manifest(prepared):
    content = json.loads((prepared / "manifest.json").read_text())
    assert not content.keys() & {"text_column", "null_documents", "validation_sources", "duplicates_dropped"}


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("text", r"a\.parquet has no column 'text'; its columns: body, id; name the one with the text by --text-column"),
        ("id", r"column 'id' of .*a\.parquet holds int64, not text; its columns of text: body"),
    ],
)
def test_a_wrong_column_is_refused_before_the_work(tmp_path, corpus, column, message):
    write_parquet(corpus / "z" / "a.parquet", DOCUMENTS, "body", id=list(range(50)))
    with pytest.raises(UserError, match=message) as error:
        prepare([str(corpus)], tmp_path / "out", text_column=column, **OPTIONS)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("spoil", [lambda content: b"no parquet", lambda content: content[:-9], lambda content: b""])
def test_broken_parquet_is_named(tmp_path, spoil):
    path = write_parquet(tmp_path / "a.parquet", DOCUMENTS)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UserError, match=r"a\.parquet: broken parquet \(") as error:
        prepare([str(path)], tmp_path / "out", **OPTIONS)
    assert "\n" not in str(error.value)


def test_broken_utf8_in_parquet_is_named_by_its_row(tmp_path):
    bad = pyarrow.array([b"fine", b"a\xff"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": bad}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet, row 2: 'text' is not UTF-8 at byte 1"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("spoil", [lambda content: content[:-4], lambda content: b"no zstd", lambda content: content + b"rubbish"])
@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.txt.zst"])
def test_broken_zstandard_is_named(tmp_path, spoil, name):
    (tmp_path / name).write_bytes(spoil(zstd(rows(DOCUMENTS))))
    with pytest.raises(UserError, match=rf"{name}(, line \d+)?: broken zstd \("):
        read(tmp_path / name)


def test_a_truncated_stream_says_how_far_it_got(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(rows(["a", "b"])) + zstd(rows(["c"]))[:-3])
    with pytest.raises(UserError, match=r"a\.jsonl\.zst, line 3: broken zstd"):
        read(tmp_path / "a.jsonl.zst")


# --- long texts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr(long_text, "HELD", 64)
    monkeypatch.setattr(long_text, "CHUNK", 7)
    monkeypatch.setattr(bpe, "PIECE", 16)
    monkeypatch.setattr(writer, "BATCH", 40)


@pytest.mark.parametrize("pack", [None, gzip.compress, zstd])
def test_a_long_text_is_streamed_and_not_held(tmp_path, monkeypatch, little_memory, pack):
    text = "lines ü of 深\n a long\ntext" * 30
    path = tmp_path / ("a.txt" + {None: "", gzip.compress: ".gz", zstd: ".zst"}[pack])
    path.write_bytes(pack(text.encode()) if pack else text.encode())
    (found,) = read(path)
    assert isinstance(found, LongText) and found.digest == hashlib.sha256(text.encode()).digest()
    assert "".join(found.chunks()) == text and len(list(found.chunks())) > 50
    path.write_bytes(pack(text[1:].encode()) if pack else text[1:].encode())
    with pytest.raises(UserError, match=r"was changed while it was read; repeat"):
        list(found.chunks())


@pytest.mark.parametrize("tokenizer", ["bytes", "mine.json"])
def test_streaming_changes_no_token(corpus, tmp_path, monkeypatch, tokenizer):
    (corpus / "long.txt").write_text("lines ü of 深\n a long\ntext" * 300, encoding="utf-8")
    (corpus / "long.md").write_text("x" * 1000 + "ö" * 1000, encoding="utf-8")
    monkeypatch.setattr(bpe, "PIECE", 16)
    bpe_files.write(tmp_path / "mine.json", [("l", "i"), ("li", "n"), ("\n", " "), (" ", "a"), ("x", "x")])
    options = OPTIONS | {"tokenizer": tokenizer if tokenizer == "bytes" else str(tmp_path / tokenizer)}
    whole = prepare([str(corpus)], tmp_path / "whole", **options)
    for name, value in (("HELD", 64), ("CHUNK", 7)):
        monkeypatch.setattr(long_text, name, value)
    monkeypatch.setattr(writer, "BATCH", 40)
    assert prepare([str(corpus)], tmp_path / "streamed", **options) == whole
    assert contents(tmp_path / "streamed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x" * 100 + b"\xff", "not UTF-8 at byte 100"),
        ("ö".encode() * 50 + b"\xc3", "not UTF-8 at byte 100"),
        ("深".encode() * 40 + b"\xe6\xb7x", "not UTF-8 at byte 120"),
        (b"x" * 100 + b"\0", "NUL"),
    ],
)
def test_a_long_file_that_is_no_text(tmp_path, little_memory, content, reason):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(NotTextError, match=reason):
        read(tmp_path / "a.txt")


def test_a_bpe_is_learned_from_long_texts_too(corpus, tmp_path, little_memory):
    (corpus / "long.txt").write_text("words of a long text\n" * 50)
    found = prepare([str(corpus)], tmp_path / "out", tokenizer="bpe-280", **OPTIONS)
    assert found.vocab_size == 280
