import json

import pytest

from depthbench.data import describe, load_manifest
from depthbench.errors import UserError


def test_describe_is_json_and_complete(prepared):
    manifest = load_manifest(prepared)
    told = json.loads(json.dumps(describe(prepared)))
    assert told["fingerprint"] == manifest.fingerprint and told["validation_sha256"] == manifest.validation_sha256
    assert told["tokenizer"] == {"name": "bytes", "hash": manifest.tokenizer_hash}
    assert told["train"]["tokens"] == manifest.train.tokens and told["train"]["files"] == ["train.bin"]
    assert told["train"]["documents"] + told["validation"]["documents"] == 60
    assert told["validation"]["fraction_asked"] == 0.2
    assert told["validation"]["bytes_per_token"] == pytest.approx(1, abs=0.05)
    (source,) = told["sources"]
    assert (source["name"], source["files"]) == ("corpus", 60) and len(source["sha256"]) == 64
    assert told["verified"] is False and describe(prepared, verify=True)["verified"] is True


def test_verify_finds_what_sizes_do_not_show(copy):
    content = bytearray((copy / "train.bin").read_bytes())
    content[0] ^= 1
    (copy / "train.bin").write_bytes(content)
    describe(copy)
    with pytest.raises(UserError, match=r"train\.bin does not have the hash"):
        describe(copy, verify=True)


def test_wrong_size_is_always_found(copy):
    (copy / "train.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.bin has 0 bytes"):
        describe(copy)
