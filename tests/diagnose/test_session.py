"""`depthbench diagnose` on run folders: what it writes, that it continues, and what it refuses."""

import json

import numpy as np
import pytest

from depthbench import ModelShape
from depthbench.cli import main
from depthbench.diagnose import session, tasks
from depthbench.diagnose.ours import OurSubject
from depthbench.diagnose.settings import Settings
from helpers import random_model

SMALL = ("--windows", "4", "--length", "16", "--threads", "1")


@pytest.fixture(scope="module")
def trained(tokens_folder, tmp_path_factory):
    """A study folder with a short run of two designs."""
    out = tmp_path_factory.mktemp("runs")
    for design in ("attnres_block", "hc"):
        words = f"train --design {design} --n-layers 4 --d-model 16 --heads 2 --context 32 --steps 4 --batch-size 4"
        assert main([*words.split(), "--validation-windows", "4", "--data", str(tokens_folder), "--out", str(out)]) == 0
    return out


def diagnose(trained, tokens_folder, *words):
    return main(["diagnose", str(trained), "--data", str(tokens_folder), *SMALL, *words])


def run_of(trained, design):
    return next(path for path in (trained / "cells").iterdir() if path.name.startswith(f"{design}-4x16"))


def test_all_runs_of_a_folder(trained, tokens_folder, capsys):
    assert diagnose(trained, tokens_folder, "--json") == 0
    block, hc = json.loads(capsys.readouterr().out)
    assert [block["subject"]["design"], hc["subject"]["design"]] == ["attnres_block", "hc"]
    for content in (block, hc):
        assert set(content["measures"]) == {"angular", "causal", "pruning", "permutation", "lens", "usefulness", "paths", "mixing"}
        assert set(content["measures"]["permutation"]) == {"trained", "untrained"}
        assert content["windows"]["causal"]["n"] == 4 and len(content["windows"]["causal"]["sha256"]) == 64
        late = content["measures"]["permutation"]["trained"]["late"]
        assert late["pairs"] == 3 and late["share"]["low"] <= late["share"]["value"] <= late["share"]["high"]
    assert set(block["measures"]["causal"]) == {"newest", "state"} and set(hc["measures"]["causal"]) == {"identity"}
    assert block["measures"]["mixing"]["block_size"] == 2
    assert np.shape(hc["measures"]["mixing"]["effective_rank"]["value"]) == (4,)
    assert diagnose(trained, tokens_folder) == 0
    assert "hc 4 × 16 lr 0.004" in capsys.readouterr().out


def test_the_untrained_model_has_its_own_scores(trained, tokens_folder):
    content = json.loads((run_of(trained, "hc") / session.RESULT).read_text())
    score = content["measures"]["permutation"]
    assert score["trained"]["loss"] < score["untrained"]["loss"]


def test_a_killed_diagnosis_continues(trained, tokens_folder, monkeypatch):
    run, words = run_of(trained, "hc"), ("--window-seed", "3", "--json")
    monkeypatch.setattr(tasks, "BATCH_TOKENS", 32)
    begun = []

    def counted(passes):
        begun.append(passes)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return permutation(passes)

    permutation = tasks._permutation
    monkeypatch.setattr(tasks, "_permutation", counted)
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 130
    assert len(list((run / session.PARTS).rglob("permutation.trained-*.npz"))) == 1
    monkeypatch.setattr(tasks, "_permutation", lambda passes: begun.append(passes) or permutation(passes))
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 0
    assert len(begun) == 2 + 1 + 2  # the killed one, and what was left of two batches for each of two models
    assert not (run / session.PARTS).exists()
    continued = json.loads((run / session.RESULT).read_text())["measures"]
    monkeypatch.undo()
    (run / session.RESULT).unlink()
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 0
    again = json.loads((run / session.RESULT).read_text())["measures"]  # in other batches, too
    np.testing.assert_allclose(_numbers(continued["permutation"]), _numbers(again["permutation"]), atol=1e-6)


def _numbers(content):
    if isinstance(content, dict):
        content = list(content.values())
    return [number for part in content for number in _numbers(part)] if isinstance(content, list) else [content or 0.0]


def test_measures_taken_one_by_one_are_kept_together(trained, tokens_folder):
    run = run_of(trained, "attnres_block")
    for seed, measure in (("0", "causal"), ("9", "angular"), ("9", "lens")):
        assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, "--window-seed", seed, "--only", measure]) == 0
    content = json.loads((run / session.RESULT).read_text())
    assert {"angular", "lens", "causal"} <= set(content["measures"])
    assert content["windows"]["lens"]["seed"] == 9 and content["windows"]["causal"]["seed"] == 0
    with np.load(run / session.ARRAYS) as arrays:
        assert {"lens/loss", "causal.trained.newest/ratio"} <= set(arrays.files)


def test_a_text_of_one_window_leaves_usefulness_out_and_says_so():
    subject = OurSubject(random_model("preln", ModelShape(2, 8, 2, d_ff=8, vocab_size=29, context=16)))
    tokens = np.arange(16, dtype=np.uint16)
    found, without = tasks.tasks(subject, None, tokens, Settings(only=("usefulness", "lens")))
    assert [task.measure for task in found] == ["lens"]
    assert without == ["usefulness: it fits on one window and measures on another, and the text has one; give more text"]
    assert (
        len(tasks.tasks(subject, None, np.tile(tokens, 3), Settings(only=("usefulness",)))[0][0].windows) == 1
    )  # of two, one to measure


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--length", "33"), "windows of 33 tokens are longer than the model's context of 32"),
        (("--windows", "100000"), "100000 windows of 16 tokens asked for"),
        (("--windows", "1", "--only", "usefulness"), "needs at least 2, got 1"),
        (("--only", "anglar"), "did you mean 'angular'"),
        (("--skip", "never"), "skip must be one of"),
        (("--precision", "fp8"), "precision must be one of fp32, bf16, fp64, got 'fp8'"),
        (("--device", "cuda:9"), "--device cuda:9"),
        (("--hf", "x"), "give either run folders, or one Hugging Face checkpoint"),
        (("--text", "x", "--out", "y"), "--text, --out goes with --hf alone"),
        (("--allow-pickle",), "--allow-pickle goes with --hf alone"),
    ],
)
def test_bad_options(trained, tokens_folder, capsys, words, message):
    assert diagnose(trained, tokens_folder, *words) == 2
    assert message in capsys.readouterr().err


def test_bad_runs(trained, tokens_folder, tmp_path, capsys):
    def refused(path):
        assert main(["diagnose", str(path), "--data", str(tokens_folder)]) == 2
        return capsys.readouterr().err

    assert "does not exist" in refused(tmp_path / "none")
    assert "is no run folder (it has no cell.json)" in refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "file is a file; give a run folder" in refused(tmp_path / "file")
    run, partial = run_of(trained, "hc"), tmp_path / "partial"
    partial.mkdir()
    (partial / "cell.json").write_bytes((run / "cell.json").read_bytes())
    (partial / "metrics.jsonl").write_text('{"step": 2, "loss": 5.0}\n')
    assert "it is waiting at step 2 of 4; train it to its end first" in refused(partial)
    (partial / "result.json").write_bytes((run / "result.json").read_bytes())
    assert "has no checkpoint of step 4, its last" in refused(partial)


def unwrapped(page):
    """A chart's page with the lines of its caption put together."""
    return page.read_text().replace('", "', " ")


def test_the_report_shows_them_side_by_side(trained, tokens_folder, capsys):
    assert diagnose(trained, tokens_folder) == 0
    assert main(["report", str(trained)]) == 0
    assert "diagnosis_heatmaps, diagnosis_shares, diagnosis_depth, diagnosis_paths" in capsys.readouterr().out.replace("\n", " ")
    page = unwrapped(trained / "report" / "diagnosis_heatmaps.html")
    for text in ("attnres_block: causal, untrained, state", "hc: permutation, trained", "hc: angular distance", "Blocks from 0"):
        assert text in page
    assert "different windows" not in page  # though not every design has every measure
    run = run_of(trained, "hc")
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, "--window-seed", "5", "--only", "lens"]) == 0
    assert main(["report", str(trained)]) == 0
    assert "The designs were measured on different windows: lens." in unwrapped(trained / "report" / "diagnosis_depth.html")
    for path in (trained / "cells").glob(f"*/{session.RESULT}"):
        path.write_text("{")  # unreadable: left out, and the report is made all the same
    assert main(["report", str(trained)]) == 0
    assert not (trained / "report" / "diagnosis_heatmaps.html").exists()
    for path in (trained / "cells").glob(f"*/{session.RESULT}"):
        path.unlink()


def test_a_study_diagnoses_what_it_trained(tokens_folder, tmp_path, capsys):
    study = tmp_path / "small.py"
    study.write_text(
        "from depthbench import Budget, Recipe, Study\n\n\ndef study():\n"
        "    return Study('small', ('preln',), (0.002, 0.004), Recipe(3, 4, 0.002, validation_windows=4),"
        " budget=Budget(10e3, match='backbone', n_heads=2, vocab_size=257, context=32), n_layers=(2,))\n"
    )
    words = ["run", f"{study}:study", "--data", str(tokens_folder), "--out", str(tmp_path / "out"), "--workers", "1", "--diagnose"]
    assert main(words) == 0
    assert len(list((tmp_path / "out" / "cells").glob(f"*/{session.RESULT}"))) == 1  # of the best rate alone
    assert (tmp_path / "out" / "report" / "diagnosis_heatmaps.png").exists()
    assert main([*words, "--slurm", "partition=gpu"]) == 2
    assert "depthbench diagnose OUT" in capsys.readouterr().err
