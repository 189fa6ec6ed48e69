import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthbench.data import ByteTokenizer, Untrained, find_tokenizer, load_tokenizer
from depthbench.errors import UserError


@settings(deadline=None)
@given(st.text())
def test_bytes_round_trip(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text.encode())


def test_vocabulary_is_256_bytes_and_eos():
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.eos) == ("bytes", 257, 256)
    lengths = tokenizer.token_bytes()
    assert lengths.dtype == np.int64 and lengths.tolist() == [1] * 256 + [0]


def test_hash_is_pinned():
    # part of every manifest: if this changes, token files made before are refused
    assert load_tokenizer("bytes").hash == "a28bfd40cb1ab8c2fa979c5ccbb13625d014c34f7496e7434711ab45fd644493"


def test_decode_drops_eos_and_marks_broken_utf8():
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([104, 105, 256, 0xFF]) == "hi\ufffd"
    assert tokenizer.decode([]) == ""
    for ids in ([257], [-1]):
        with pytest.raises(UserError, match="0 to 256"):
            tokenizer.decode(ids)


def test_unknown_tokenizer_names_the_nearest():
    with pytest.raises(UserError, match="unknown tokenizer 'byte'; did you mean 'bytes'"):
        load_tokenizer("byte")


def test_a_bpe_to_be_trained_is_known_by_its_size():
    assert find_tokenizer("bpe-8192") == Untrained(8192) and Untrained(8192).name == "bpe-8192"
    assert find_tokenizer("bpe-258") == Untrained(258) and find_tokenizer("bpe-1048576") == Untrained(2**20)
    with pytest.raises(UserError, match=r"bpe-300 is trained on the text it is for: .*; then use FOLDER/tokenizer\.json"):
        load_tokenizer("bpe-300")


def test_a_folder_called_like_a_tokenizer_is_not_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bytes", "bpe-300", "mine"):
        (tmp_path / name).mkdir()
    assert find_tokenizer("bytes").name == "bytes" and find_tokenizer("bpe-300") == Untrained(300)
    with pytest.raises(UserError, match=r"mine is a folder; name the file in it, such as mine/tokenizer\.json"):
        find_tokenizer("mine")
