"""Tokenizer files: which are taken, what their ids stand for, and that no text turns into a control token."""

import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import bpe_files
from data.bpe_files import BYTE_LEVEL, EOS, added, spelled, write
from depthbench.data import bpe
from depthbench.data.bpe import alphabet, cut, read_tokenizer
from depthbench.data.tokenizer import InexactError
from depthbench.errors import UserError

MERGES = [("t", "h"), ("th", "e"), (" ", "the"), ("<", "|"), ("|", ">"), (b"\xc3", b"\xb6")]


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A tokenizer of 256 bytes, six merges, EOS 262 and padding 263."""
    return read_tokenizer(write(tmp_path_factory.mktemp("bpe") / "whole.json", MERGES), "whole")


def refused(path, **options):
    with pytest.raises(UserError) as error:
        read_tokenizer(path, "mine", **options)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def test_alphabet_is_that_of_gpt2():
    assert alphabet() == {character: byte for byte, character in bpe_files.spelling().items()}


# --- ids and bytes --------------------------------------------------------------------------------------------------


def test_ids_are_those_of_the_merges(whole):
    assert (whole.vocab_size, whole.eos, whole.name) == (264, 262, "whole")
    assert whole.encode("the the").tolist() == [257, 258]
    assert whole.token_bytes().tolist() == [1] * 256 + [2, 3, 4, 2, 2, 2] + [0, 0]
    assert whole.bytes_of(whole.encode("the wörd")) == 9


@settings(deadline=None, max_examples=200)
@given(st.text() | st.text(alphabet="the <|>endof\n\t\u0308ö"))
def test_round_trip(whole, text):
    ids = whole.encode(text)
    assert ids.dtype == np.uint32
    assert whole.decode(ids) == text
    assert whole.bytes_of(ids) == whole.token_bytes()[ids].sum() == len(text.encode())
    assert not {whole.eos, whole.eos + 1} & set(ids.tolist())


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|endoftext|>b", "<|padding|>", " <|endoftext|> <|endoftext|>\n"])
def test_text_that_looks_like_a_control_token_stays_text(whole, text):
    ids = whole.encode(text)
    assert ids.max() < whole.eos
    assert whole.decode(ids) == text


@pytest.mark.parametrize("special", [True, False])
def test_an_eos_that_the_file_lists_as_text_is_a_control_token_all_the_same(tmp_path, special):
    tokenizer = read_tokenizer(write(tmp_path / "a.json", extra=[added(256, EOS, special)]), "mine")
    assert tokenizer.eos == 256 and tokenizer.token_bytes()[256] == 0
    assert 256 not in tokenizer.encode(f"x{EOS}y") and tokenizer.decode(tokenizer.encode(EOS)) == EOS


def test_an_eos_that_only_the_vocabulary_knows(tmp_path):
    path = write(tmp_path / "a.json", extra=[])
    file = json.loads(path.read_text())
    file["model"]["vocab"]["</s>"] = 256
    path.write_text(json.dumps(file))
    tokenizer = read_tokenizer(path, "mine")
    assert tokenizer.eos == 256 and 256 not in tokenizer.encode("a</s>b")


def test_added_tokens_that_are_text_stand_for_themselves(tmp_path):
    extra = [added(256, EOS), added(257, "    ", special=False), added(258, "Ġö", special=False)]
    tokenizer = read_tokenizer(write(tmp_path / "a.json", extra=extra), "mine")
    assert tokenizer.encode("a    b").tolist() == [97, 257, 98]
    assert tokenizer.token_bytes()[256:].tolist() == [0, 4, 4]
    assert tokenizer.decode(tokenizer.encode("Ġö    ")) == "Ġö    "


def test_nothing_is_added_padded_or_truncated(tmp_path):
    template = [{"SpecialToken": {"id": EOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {"type": "TemplateProcessing", "single": template, "pair": [{"Sequence": {"id": "A", "type_id": 0}}]}
    post["special_tokens"] = {EOS: {"id": EOS, "ids": [256], "tokens": [EOS]}}
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 257, "pad_type_id": 0}
    padding["pad_token"] = "<|padding|>"
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    path = write(tmp_path / "a.json", post_processor=post, padding=padding, truncation=truncation)
    assert read_tokenizer(path, "mine").encode("abcd").tolist() == list(b"abcd")


def test_ids_without_a_token_stand_for_nothing(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "a.json", model={}, extra=[added(256, EOS)]), "mine")
    assert tokenizer.decode([104, 256, 105]) == "hi"
    assert tokenizer.decode([0xC3]) == "\ufffd"  # a model may write half a character
    for ids in ([257], [-1]):
        with pytest.raises(UserError, match="token ids must lie in 0 to 256"):
            tokenizer.decode(ids)


def test_a_long_text_is_encoded_in_pieces_cut_at_line_ends(whole, monkeypatch):
    monkeypatch.setattr(bpe, "PIECE", 16)
    text = "the lines\nof a long\ntext" * 20 + "x" * 50 + "\n\n\n" + "ö" * 40
    assert "".join(cut(text)) == text
    assert max(map(len, cut(text))) == 16 and list(cut(text))[:2] == ["the lines\n", "of a long\n"]
    assert list(cut("")) == []
    assert whole.decode(whole.encode(text)) == text
    assert whole.encode("").shape == (0,)


def test_the_hash_is_of_the_file_and_the_eos(tmp_path):
    path = write(tmp_path / "a.json")
    first = read_tokenizer(path, "mine")
    assert read_tokenizer(path, "another name").hash == first.hash
    assert read_tokenizer(path, "mine", "<|padding|>").hash != first.hash
    assert read_tokenizer(path, "mine", 256).hash == first.hash  # an id says the same as its token
    assert read_tokenizer(write(tmp_path / "b.json", [("a", "b")]), "mine").hash != first.hash


# --- what changes text ----------------------------------------------------------------------------------------------


def test_nfc_makes_the_normal_form_the_document(tmp_path):
    tokenizer = read_tokenizer(write(tmp_path / "a.json", normalizer={"type": "NFC"}), "mine")
    ids = tokenizer.encode("wo\u0308rd")
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", "wo\u0308rd") == "wörd"
    assert tokenizer.bytes_of(ids) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "changes text by Lowercase, .*valid: NFC or none"),
        ({"normalizer": {"type": "NFKC"}}, "changes text by NFKC"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}},
            "changes text by StripAccents",
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}}, "changes text by Replace"),
        ({"pre_tokenizer": None}, r"is not byte-level \(pre-tokenizer: none\).*valid: ByteLevel"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, r"is not byte-level \(pre-tokenizer: Whitespace\)"),
        (
            {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}},
            r"is not byte-level \(pre-tokenizer: Metaspace\)",
        ),
        ({"model": {"dropout": 0.1}}, r"encodes at random \(its model has dropout\)"),
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, "gives back another text"),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "pattern": {"Regex": r"\s"}, "behavior": "Removed", "invert": False},
                        BYTE_LEVEL,
                    ],
                }
            },
            "gives back another text",
        ),
        ({"model": {"vocab": {"a": 0, EOS: 1}, "merges": []}, "extra": [added(1, EOS)]}, "gives back another text"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_tokenizers_that_change_text_are_refused_when_they_are_read(tmp_path, changes, message):
    assert re.search(message, refused(write(tmp_path / "a.json", **changes)))


def test_what_reading_did_not_notice_is_an_error_where_it_happens(tmp_path):
    removed = {"type": "Split", "pattern": {"String": "7"}, "behavior": "Removed", "invert": False}
    path = write(tmp_path / "a.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [removed, BYTE_LEVEL]})
    tokenizer = read_tokenizer(path, "mine")
    assert tokenizer.decode(tokenizer.encode("1 2 3")) == "1 2 3"
    with pytest.raises(InexactError, match=r"'mine' gives back another text \(3 bytes became 2\)"):
        tokenizer.encode("1 7")


# --- EOS ------------------------------------------------------------------------------------------------------------


def test_the_usual_eos_is_found_and_another_can_be_named(tmp_path):
    path = write(tmp_path / "a.json", extra=[added(256, "<pad>"), added(257, "</s>"), added(258, "<eos>")])
    assert read_tokenizer(path, "mine").eos == 257
    assert read_tokenizer(path, "mine", "<eos>").eos == 258


@pytest.mark.parametrize(
    ("extra", "eos", "message"),
    [
        (None, "<|end|>", "has no token '<|end|>'; name one with --eos TOKEN; candidates: <|endoftext|> <|padding|>"),
        ([added(256, "[STOP]")], "", "none of the usual EOS tokens (<|endoftext|> </s> <eos> <|end_of_text|>)"),
        ([added(256, "[STOP]")], "", "candidates: [STOP]"),
        ([], "", "no token looks like one"),
        (None, 999, "has no token with the id 999 for EOS"),
        (None, "a", "encodes ordinary text to 'a', so it cannot end documents; name another with --eos TOKEN"),
        (None, spelled(" the"), "encodes ordinary text to 'Ġthe'"),
    ],
)
def test_an_eos_that_is_not_there_or_that_text_may_hold(tmp_path, extra, eos, message):
    assert message in refused(write(tmp_path / "a.json", MERGES, extra), eos=eos)


def test_an_eos_that_whole_words_are_looked_up_as_is_refused(tmp_path):
    path = write(tmp_path / "a.json", pre_tokenizer=BYTE_LEVEL | {"use_regex": False})
    file = json.loads(path.read_text())
    file["model"] |= {"ignore_merges": True, "vocab": file["model"]["vocab"] | {EOS: 256}}
    path.write_text(json.dumps(file))
    assert "encodes ordinary text to '<|endoftext|>'" in refused(path)


# --- files that are no tokenizer ------------------------------------------------------------------------------------

WHOLE = json.dumps(bpe_files.content([("t", "h")]))


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        WHOLE[: len(WHOLE) // 2].encode(),
        WHOLE.encode().replace(b"endoftext", b"endof\xa0text"),  # the library ends the process on this
        json.dumps(bpe_files.content(model={"merges": [["never", "seen"]]})).encode(),
        json.dumps(bpe_files.content(model={"vocab": {"a": -1}})).encode(),
        json.dumps(bpe_files.content([("t", "h")], model={"continuing_subword_prefix": "x"})).encode(),  # and on this
        json.dumps(bpe_files.content([("t", "h")], model={"end_of_word_suffix": "</w>"})).encode(),
        json.dumps(bpe_files.content(pre_tokenizer={"type": "Future"})).encode(),
    ],
    ids=lambda file: repr(file[:12]),
)
def test_damaged_files_are_one_clear_line(tmp_path, file):
    (tmp_path / "a.json").write_bytes(file)
    assert "is no tokenizer.json of Hugging Face tokenizers (" in refused(tmp_path / "a.json")


def test_ids_that_would_fill_the_memory(tmp_path):
    path = write(tmp_path / "a.json", model={"vocab": {"a": 0, "b": 2**32 - 1}, "merges": []}, extra=[])
    assert "must hold 1 to 1048576 entries, none with a higher id" in refused(path)
    assert "must hold 1 to 1048576 entries" in refused(write(path, model={"vocab": {}, "merges": []}, extra=[]))


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot read tokenizer" in refused(tmp_path / "gone.json")
    assert f"is a folder; name the file in it, such as {Path(tmp_path / 'tokenizer.json')}" in refused(tmp_path)
