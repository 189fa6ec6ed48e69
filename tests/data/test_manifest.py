import json

import pytest

from data.helpers import contents, edit_manifest
from depthbench.data import load_manifest
from depthbench.data.manifest import check_sizes, dtype_for, write_manifest
from depthbench.errors import UserError
from depthbench.files import content_hash


def nested(folder, *path):
    value = json.loads((folder / "manifest.json").read_text())
    for key in path:
        value = value[key]
    return value


def test_round_trip(prepared, tmp_path):
    manifest = load_manifest(prepared)
    write_manifest(manifest, tmp_path)
    assert load_manifest(tmp_path) == manifest
    assert contents(tmp_path)["manifest.json"] == contents(prepared)["manifest.json"]


def test_fingerprint_is_of_tokens_and_tokenizer_alone(copy):
    manifest = load_manifest(copy)
    assert manifest.fingerprint == content_hash([manifest.tokenizer_hash, manifest.train.sha256, manifest.validation_sha256])
    edit_manifest(copy, created_by="depthbench 9.9", python="3.99.0", sources=[], validation_fraction=0.5, ignored={})
    assert load_manifest(copy).fingerprint == manifest.fingerprint
    for split in ("train", "validation"):
        other = nested(copy, split) | {"sha256": "0" * 64}
        before = nested(copy, split)
        edit_manifest(copy, **{split: other})
        with pytest.raises(UserError, match="does not match its own fingerprint"):
            load_manifest(copy)
        edit_manifest(copy, **{split: before})


def test_newer_format_is_refused(copy):
    edit_manifest(copy, format=2, something_new=True)
    with pytest.raises(UserError, match=r"manifest\.json has format 2, newer than 1.*update depthbench"):
        load_manifest(copy)


def test_missing_manifest_says_how_to_make_one(tmp_path):
    with pytest.raises(UserError, match=r"no token files in .*depthbench data prepare … --out"):
        load_manifest(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": "new"}', '{"format": 1}', "\xff"])
def test_damaged_manifest_is_refused(copy, content):
    (copy / "manifest.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=r"manifest\.json is (no manifest|not valid JSON)"):
        load_manifest(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 70_000},
        {"vocab_size": "257"},
        {"dtype": "int64"},
        {"eos": 257},
        {"train": {}},
        {"extra": 1},
        {
            "train": {
                "documents": 1,
                "tokens": 9,
                "bytes": 8,
                "sha256": "",
                "shards": [{"file": "train.bin", "tokens": 8, "sha256": ""}],
            }
        },
        {"train": {"documents": 1, "tokens": 9, "bytes": 8, "sha256": "", "shards": [{"file": "../x", "tokens": 9, "sha256": ""}]}},
        {"train": {"documents": 0, "tokens": 0, "bytes": 0, "sha256": "", "shards": [{"file": "x", "tokens": 0, "sha256": ""}]}},
    ],
)
def test_contradictions_are_refused(copy, change):
    edit_manifest(copy, **change)
    with pytest.raises(UserError, match=r"is no manifest of token files .*; restore .* or delete it and prepare it again"):
        load_manifest(copy)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_sizes(copy, name):
    manifest = load_manifest(copy)
    check_sizes(copy, manifest)
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{name} has {len(content) - 1} bytes, its manifest says {len(content)}; restore"):
        check_sizes(copy, manifest)
    (copy / name).unlink()
    with pytest.raises(UserError, match=rf"cannot read .*{name}: No such file.*restore"):
        check_sizes(copy, manifest)


def test_stored_type_follows_the_vocabulary():
    assert [dtype_for(n) for n in (257, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]
