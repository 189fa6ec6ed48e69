import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthbench.data import ByteTokenizer, load_tokenizer
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
