"""Sources kept for validation, and documents that are on both sides."""

import json
from pathlib import Path

import pytest

from data.helpers import contents, snapshot, texts
from data.real_files import write_parquet
from depthbench.cli import main
from depthbench.data import TokenData, describe, load_manifest, parts, prepare
from depthbench.errors import UserError

TRAIN = [f"training document {number}" for number in range(40)]
HELD_OUT = [f"held out document {number}" for number in range(10)]


@pytest.fixture
def files(tmp_path):
    """Training documents, of which four are in the validation file too."""
    train = write_parquet(tmp_path / "train.parquet", [*TRAIN[:20], *HELD_OUT[:3], *TRAIN[20:], HELD_OUT[0]])
    clean = write_parquet(tmp_path / "clean.parquet", TRAIN)
    held = write_parquet(tmp_path / "held.parquet", HELD_OUT)
    return train, clean, held


def run(train, held, out, **options):
    return prepare([str(train)], out, validation=[str(held)], quiet=True, **options)


def test_each_source_stays_on_its_side(files, tmp_path):
    _, clean, held = files
    manifest = run(clean, held, tmp_path / "out")
    assert texts(tmp_path / "out", "train") == TRAIN and texts(tmp_path / "out", "validation") == HELD_OUT
    assert manifest == load_manifest(tmp_path / "out")
    assert [source.name for source in manifest.sources] == ["clean.parquet"]
    assert [source.name for source in manifest.validation_sources] == ["held.parquet"]
    assert (manifest.validation_fraction, manifest.duplicates_dropped) == (0.0, 0)
    assert [source["name"] for source in describe(tmp_path / "out")["validation_sources"]] == ["held.parquet"]
    before = snapshot(tmp_path / "out")
    assert run(clean, held, tmp_path / "out") == manifest and snapshot(tmp_path / "out") == before


def test_duplicates_are_refused_with_a_count_and_an_example(files, tmp_path):
    train, _, held = files
    message = r"4 training documents are .* such as document 21 of train\.parquet \('held out document 0'\).* --duplicates drop"
    with pytest.raises(UserError, match=message) as error:
        run(train, held, tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_duplicates_are_dropped_from_training_and_counted(files, tmp_path, workers):
    train, clean, held = files
    manifest = run(train, held, tmp_path / "out", duplicates="drop", workers=workers)
    assert manifest.duplicates_dropped == 4 == describe(tmp_path / "out")["duplicates_dropped"]
    assert manifest.fingerprint == run(clean, held, tmp_path / "clean").fingerprint
    assert manifest.train.documents == 40 and manifest.validation.documents == 10
    with pytest.raises(UserError, match="4 duplicates dropped there, to be refused now"):
        run(train, held, tmp_path / "out")


def test_what_was_refused_is_not_tokenized_again_to_be_dropped(files, tmp_path, monkeypatch):
    train, _, held = files
    with pytest.raises(UserError, match="4 training documents"):
        run(train, held, tmp_path / "out")
    monkeypatch.setattr(parts, "tokenize", lambda *_: pytest.fail("tokenized again"))
    assert run(train, held, tmp_path / "out", duplicates="drop").duplicates_dropped == 4


def test_validation_text_has_no_part_in_a_trained_tokenizer(files, tmp_path):
    train, clean, held = files
    for name, source in (("out", train), ("clean", clean)):
        run(source, held, tmp_path / name, duplicates="drop", tokenizer="bpe-270")
    assert contents(tmp_path / "out")["tokenizer.json"] == contents(tmp_path / "clean")["tokenizer.json"]
    assert TokenData.open(tmp_path / "out").manifest.fingerprint == load_manifest(tmp_path / "clean").fingerprint


def test_a_validation_file_inside_the_training_folder_is_left_out_of_training(tmp_path):
    write_parquet(tmp_path / "all" / "a.parquet", TRAIN)
    held = write_parquet(tmp_path / "all" / "b.parquet", HELD_OUT)
    manifest = run(tmp_path / "all", held, tmp_path / "out")
    assert texts(tmp_path / "out", "train") == TRAIN
    assert manifest.ignored == {"(kept for validation)": 1} and set(manifest.sources[0].files) == {"a.parquet"}


def test_nothing_left_to_train_on(files, tmp_path):
    _, _, held = files
    other = write_parquet(tmp_path / "other.parquet", HELD_OUT[:2])
    with pytest.raises(UserError, match="all 2 training documents are validation documents too"):
        run(other, held, tmp_path / "out", duplicates="drop")
    with pytest.raises(UserError, match="the training sources hold no documents"):
        run(held, held, tmp_path / "out2")
    empty = write_parquet(tmp_path / "empty.parquet", ["", None])
    with pytest.raises(UserError, match="the validation sources hold no documents"):
        run(held, empty, tmp_path / "out3")
    assert not (tmp_path / "out3").exists()


def test_several_validation_sources_and_other_ones_later(files, tmp_path):
    _, clean, held = files
    more = write_parquet(tmp_path / "more.parquet", ["another"])
    prepare([str(clean)], tmp_path / "out", validation=[str(held), str(more)], quiet=True)
    assert texts(tmp_path / "out", "validation") == [*HELD_OUT, "another"]
    with pytest.raises(UserError, match=r"validation sources held\.parquet, more\.parquet there, held\.parquet asked for"):
        run(clean, held, tmp_path / "out")
    with pytest.raises(UserError, match=r"validation fraction 0 there, 0\.05 asked for"):
        prepare([str(clean)], tmp_path / "out", quiet=True)


class KilledError(BaseException):
    pass


def test_killed_half_way_and_continued(files, tmp_path, monkeypatch):
    train, _, held = files
    run(train, held, tmp_path / "whole", duplicates="drop", tokenizer="bpe-270")
    real = parts.tokenize
    for stop in (0, 1):
        with monkeypatch.context() as patched:
            patched.setattr(parts, "tokenize", lambda job, *rest, stop=stop: real(job, *rest) if job.number < stop else killed())
            with pytest.raises(KilledError):
                run(train, held, tmp_path / f"out{stop}", duplicates="drop", tokenizer="bpe-270")
        run(train, held, tmp_path / f"out{stop}", duplicates="drop", tokenizer="bpe-270")
        assert contents(tmp_path / f"out{stop}") == contents(tmp_path / "whole")


def killed():
    raise KilledError


def test_the_command_line(files, tmp_path, capsys):
    train, _, held = files
    words = ["data", "prepare", str(train), "--validation", str(held), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("depthbench: 4 training documents are validation documents too")
    assert main([*words, "--duplicates", "drop"]) == 0
    shown = capsys.readouterr().out
    assert "validation source held.parquet: 1 files" in shown
    assert "left out 4 training documents that are validation documents too" in shown
    for more, message in (
        (["--validation-fraction", "0.1"], "--validation and --validation-fraction both say"),
        (["--duplicates", "keep"], "unknown way with duplicates 'keep'; "),
        (["--validation", "gone.txt"], "source 'gone.txt' does not exist"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_train_bpe_is_another_word_for_the_tokenizer(files, tmp_path, capsys):
    train, _, held = files
    words = ["data", "prepare", str(train), "--validation", str(held), "--duplicates", "drop", "--json"]
    assert main([*words, "--train-bpe", "270", "--out", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["tokenizer"]["name"] == "bpe-270"
    assert main([*words, "--tokenizer", "bpe-270", "--out", str(tmp_path / "b")]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    capsys.readouterr()
    assert main([*words, "--train-bpe", "270", "--tokenizer", "bpe-280", "--out", str(Path(tmp_path, "c"))]) == 2
    assert "--train-bpe 270 asks for the tokenizer bpe-270, --tokenizer for bpe-280; give one" in capsys.readouterr().err
