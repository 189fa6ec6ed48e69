"""Token files of a BPE: exact, continued after any end, the same for any number of workers, and never mistaken for others."""

import errno
import importlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from data import bpe_files
from data.helpers import contents, snapshot, write_corpus
from depthbench.data import TokenData, describe, folder_tokenizer, load_manifest, parts, prepare, validation_batches
from depthbench.data.bpe import read_tokenizer
from depthbench.data.parts import is_validation
from depthbench.errors import UserError

module = importlib.import_module("depthbench.data.prepare")
learning = importlib.import_module("depthbench.data.learn")
OPTIONS = {"validation_fraction": 0.2, "quiet": True, "tokenizer": "bpe-280"}


def run(source, out, **options):
    return prepare([str(source)], out, **OPTIONS | options)


def documents(corpus, split):
    """The documents of one side, in order, from the files themselves."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(corpus.rglob("*")) if path.is_file()]
    return [text for text in texts if is_validation(text.encode(), 0.2) == (split == "validation")]


def read_back(folder, split):
    """The documents of one side, from the stored ids and the tokenizer beside them."""
    tokenizer = folder_tokenizer(folder)
    ids = np.fromfile(folder / f"{split}.bin", dtype="<u2" if tokenizer.vocab_size <= 2**16 else "<u4")
    ends = np.flatnonzero(ids == tokenizer.eos)
    assert ends[-1] == len(ids) - 1
    return [tokenizer.decode(ids[start:end]) for start, end in zip([0, *ends[:-1] + 1], ends, strict=True)]


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A corpus that tests read and never change; some of its text looks like control tokens."""
    corpus = write_corpus(tmp_path_factory.mktemp("source") / "corpus")
    for number in range(5):
        (corpus / f"forged{number}.md").write_text(f"{number} <|endoftext|>{bpe_files.EOS}\n\n  <|padding|>", encoding="utf-8")
    return corpus


@pytest.fixture(scope="session")
def made(source, tmp_path_factory):
    """A finished folder that tests read and never change."""
    out = tmp_path_factory.mktemp("made") / "out"
    run(source, out)
    return out


def test_every_document_comes_back_from_its_side(source, made):
    manifest = load_manifest(made)
    assert (manifest.tokenizer, manifest.vocab_size, manifest.dtype) == ("bpe-280", 280, "uint16")
    for split in ("train", "validation"):
        due, side = documents(source, split), getattr(manifest, split)
        assert read_back(made, split) == due
        assert (side.documents, side.bytes) == (len(due), sum(len(text.encode()) for text in due))
        assert side.tokens < side.bytes


def test_the_manifest_pins_the_tokenizer_that_lies_beside_it(made):
    manifest, tokenizer = load_manifest(made), folder_tokenizer(made)
    assert (tokenizer.name, tokenizer.eos, tokenizer.hash) == ("bpe-280", manifest.eos, manifest.tokenizer_hash)
    assert tokenizer.file == (made / "tokenizer.json").read_bytes()
    assert set(contents(made)) == {
        ".lock",
        "manifest.json",
        "token_bytes.npy",
        "tokenizer.json",
        "train.bin",
        "validation.bin",
    }


def test_a_changed_copy_of_the_tokenizer_is_noticed(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    path = tmp_path / "copy" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match=r"tokenizer\.json does not have the hash in its manifest"):
        folder_tokenizer(tmp_path / "copy")
    with pytest.raises(UserError, match=r"tokenizer\.json does not have the hash in its manifest"):
        describe(tmp_path / "copy", verify=True)
    path.unlink()
    with pytest.raises(UserError, match="cannot read tokenizer"):
        describe(tmp_path / "copy", verify=True)


def test_bytes_are_counted_over_the_predicted_tokens(source, made):
    """Bits per byte divides by the UTF-8 bytes of the predicted tokens: not by tokens, and EOS counts none."""
    data = TokenData.open(made)
    text = "".join(documents(source, "validation")).encode()
    lengths = [len(piece) for piece in read_tokenizer(made / "tokenizer.json", "x").pieces]
    assert data.token_bytes.tolist() == lengths and lengths[data.manifest.eos] == 0
    assert data.bytes_of(data.validation) == len(text)
    context, n_windows = 16, 20
    batches = validation_batches(data, context=context, batch_size=7, n_windows=n_windows)
    counted = sum(data.bytes_of(targets) for _, targets in batches)
    predicted = data.validation[1 : 1 + context * n_windows].tolist()
    assert data.manifest.eos in predicted
    assert counted == sum(lengths[id] for id in predicted) != len(predicted)
    first = lengths[data.validation[0]]
    assert text[first : first + counted].decode(errors="replace") == folder_tokenizer(made).decode(predicted)


def test_a_file_made_elsewhere_gives_the_same_tokens_under_its_own_name(source, made, tmp_path):
    given = tmp_path / "mine.json"
    shutil.copy(made / "tokenizer.json", given)
    manifest = run(source, tmp_path / "out", tokenizer=str(given))
    assert manifest.tokenizer == "mine" and manifest.fingerprint == load_manifest(made).fingerprint
    given.unlink()  # the folder has its own copy
    assert folder_tokenizer(tmp_path / "out").hash == manifest.tokenizer_hash


def test_more_ids_than_two_bytes_hold_are_stored_in_four(source, tmp_path):
    filler = {f"{number:06d}": number for number in range(256, 70_000)}
    vocabulary = {character: byte for byte, character in bpe_files.spelling().items()} | filler
    path = bpe_files.write(tmp_path / "wide.json", model={"vocab": vocabulary}, extra=[bpe_files.added(70_000, bpe_files.EOS)])
    manifest = run(source, tmp_path / "out", tokenizer=str(path))
    assert (manifest.vocab_size, manifest.eos, manifest.dtype) == (70_001, 70_000, "uint32")
    data = TokenData.open(tmp_path / "out", verify=True)
    assert (data.train == 70_000).sum() == manifest.train.documents
    assert read_back(tmp_path / "out", "train") == documents(source, "train")


def test_nfc_counts_the_bytes_of_the_normal_form(tmp_path):
    rows = [f"{number} wo\u0308rd" for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    path = bpe_files.write(tmp_path / "nfc.json", normalizer={"type": "NFC"})
    manifest = run(tmp_path / "a.jsonl", tmp_path / "out", tokenizer=str(path))
    assert manifest.train.bytes + manifest.validation.bytes == sum(len(f"{number} wörd".encode()) for number in range(40))


def test_a_tokenizer_that_loses_text_names_the_document(tmp_path):
    removed = {"type": "Split", "pattern": {"String": "7"}, "behavior": "Removed", "invert": False}
    splitter = {"type": "Sequence", "pretokenizers": [removed, bpe_files.BYTE_LEVEL]}
    path = bpe_files.write(tmp_path / "lossy.json", pre_tokenizer=splitter)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(30)))
    with pytest.raises(UserError, match=r"a\.jsonl, document 8: tokenizer 'lossy' gives back another text"):
        run(tmp_path / "a.jsonl", tmp_path / "out", tokenizer=str(path))
    assert not (tmp_path / "out" / "manifest.json").exists()


# --- ends and workers -----------------------------------------------------------------------------------------------


class KilledError(BaseException):
    """Not an `Exception`: nothing may catch it."""


@pytest.fixture
def large_groups(monkeypatch):
    """Two parts."""
    monkeypatch.setattr(parts, "GROUP_BYTES", 40 * 4096)


def test_the_number_of_workers_changes_nothing(source, made, tmp_path, large_groups):
    run(source, tmp_path / "out", workers=2)
    assert contents(tmp_path / "out") == contents(made)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_at_any_write_loses_nothing(source, made, tmp_path, monkeypatch, large_groups, when):
    """The writes: the learned tokenizer, its copy, three files for each of two parts, four files at the end."""
    real = os.replace
    left = 0

    def replace(before, after):
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            raise KilledError
        real(before, after)
        if left == 0:
            raise KilledError

    monkeypatch.setattr(os, "replace", replace)
    for stop in range(1, 2 + 3 * 2 + 4 + 1):
        left = stop
        with pytest.raises(KilledError):
            run(source, tmp_path / str(stop))
        assert (tmp_path / str(stop) / "manifest.json").exists() == (stop == 12 and when == "after")
        run(source, tmp_path / str(stop))
        assert contents(tmp_path / str(stop)) == contents(made)
    left = 13
    run(source, tmp_path / "last")  # there are no more writes than we counted
    assert left == 1


def test_an_end_while_learning(source, made, tmp_path, monkeypatch):
    real = learning.contents

    def some(file):
        yield from real(file)
        if file.name.endswith("doc30.txt"):
            raise KilledError

    monkeypatch.setattr(learning, "contents", some)
    with pytest.raises(KilledError):
        run(source, tmp_path / "out")
    monkeypatch.undo()
    run(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(made)


def stop_in_tokenizing(source, out, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(parts, "tokenize", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(source, out)


def test_a_tokenizer_is_learned_once(source, made, tmp_path, monkeypatch):
    stop_in_tokenizing(source, tmp_path / "out", monkeypatch)
    monkeypatch.setattr(learning, "learn", lambda *_: pytest.fail("learned twice"))
    run(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(made)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_damaged_one_is_learned_again(source, made, tmp_path, monkeypatch, content):
    stop_in_tokenizing(source, tmp_path / "out", monkeypatch)
    (kept,) = (tmp_path / "out" / "parts").glob("*.tokenizer.json")
    kept.write_bytes(content)
    run(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(made)


def test_a_corpus_that_changed_before_continuing_is_learned_again(corpus, tmp_path, monkeypatch):
    stop_in_tokenizing(corpus, tmp_path / "out", monkeypatch)
    path = corpus / "part1" / "doc01.md"
    path.write_text("zebra zebras " * 100)
    run(corpus, tmp_path / "out")
    run(corpus, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize(("first", "second"), [("bpe-280", "bytes"), ("bytes", "bpe-280"), ("bpe-290", "bpe-280")])
def test_unfinished_work_of_another_tokenizer_is_not_mixed_in(source, tmp_path, monkeypatch, large_groups, first, second):
    real = parts.tokenize
    monkeypatch.setattr(parts, "tokenize", lambda job, *rest: real(job, *rest) if job.number < 1 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(source, tmp_path / "out", tokenizer=first)
    monkeypatch.setattr(parts, "tokenize", real)
    run(source, tmp_path / "out", tokenizer=second)
    run(source, tmp_path / "fresh", tokenizer=second)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_full_disk_is_one_clear_line_in_every_phase(source, made, tmp_path, monkeypatch, large_groups):
    real = os.replace
    for stop in range(1, 13):
        written, out = [], tmp_path / str(stop)

        def replace(before, after, written=written, stop=stop):
            written.append(after)
            if len(written) == stop:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(before, after)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(UserError, match=rf"cannot write to {out}: No space left on device; mend that and repeat to continue"):
            run(source, out)
        run(source, out)
        assert contents(out) == contents(made)


# --- calling it again -----------------------------------------------------------------------------------------------


def test_a_finished_folder_is_returned_as_it_is(source, made, monkeypatch):
    before = snapshot(made)
    monkeypatch.setattr(learning, "learn", lambda *_: pytest.fail("learned twice"))
    assert run(source, made) == load_manifest(made)
    assert snapshot(made) == before


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("bytes", "tokenizer 'bpe-280' there, 'bytes' asked for"),
        ("bpe-281", "tokenizer 'bpe-280' there, 'bpe-281' asked for"),
    ],
)
def test_another_tokenizer_for_a_finished_folder_is_refused(source, made, tokenizer, message):
    with pytest.raises(UserError, match=f"already holds other tokens: {message}; choose another --out"):
        run(source, made, tokenizer=tokenizer)


def test_another_file_or_eos_of_one_name_is_refused(source, tmp_path):
    path = bpe_files.write(tmp_path / "mine.json")
    run(source, tmp_path / "out", tokenizer=str(path))
    for change in ({"eos": "<|padding|>"}, {}):
        if not change:
            bpe_files.write(path, [("w", "o")])
        with pytest.raises(UserError, match=r"tokenizer 'mine' there, 'mine' asked for \(another file or EOS\)"):
            run(source, tmp_path / "out", tokenizer=str(path), **change)


def test_a_tokenizer_of_other_origin_is_not_overwritten(source, tmp_path):
    path = bpe_files.write(tmp_path / "out" / "tokenizer.json")
    before = snapshot(tmp_path / "out")
    with pytest.raises(UserError, match=r"holds tokenizer\.json of other origin; choose another --out"):
        run(source, tmp_path / "out", tokenizer=str(path))
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["bytes", "bpe-280"])
def test_a_folder_may_have_the_name_of_its_tokenizer(source, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    first = run(source, Path(name), tokenizer=name)
    assert run(source, Path(name), tokenizer=name) == first


# --- too small ------------------------------------------------------------------------------------------------------


def test_too_little_text_for_the_size(source, tmp_path):
    with pytest.raises(UserError, match=r"too little training text for bpe-8192: it gives \d+ entries, bytes and EOS included"):
        run(source, tmp_path / "out", tokenizer="bpe-8192")
    assert not (tmp_path / "out" / "manifest.json").exists()
    run(source, tmp_path / "out")  # a mended call needs no other folder


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-280"])
def test_one_document_is_refused_before_the_work(source, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(learning, "learn", lambda *_: pytest.fail("learned"))
    monkeypatch.setattr(parts, "tokenize", lambda *_: pytest.fail("tokenized"))
    (tmp_path / "book.txt").write_text("once upon a time " * 100)
    with pytest.raises(UserError, match=r"a single document, which cannot be split .*a line of \.jsonl is one") as error:
        run(tmp_path / "book.txt", tmp_path / "out", tokenizer=tokenizer)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="none of 65 documents falls into validation at validation fraction 1e-09"):
        run(source, tmp_path / "out", tokenizer=tokenizer, validation_fraction=1e-9)
    assert not (tmp_path / "out").exists()


def test_the_early_look_reads_only_up_to_the_first_of_each_side(source, monkeypatch, tmp_path):
    joining = importlib.import_module("depthbench.data.join")
    real, read = joining.contents, []

    def counted(file):
        read.append(file.name)
        return real(file)

    monkeypatch.setattr(joining, "contents", counted)
    run(source, tmp_path / "out", tokenizer="bytes")
    assert 2 <= len(read) < 20
