"""`depthbench diagnose` on run folders: what it writes, that it continues, and what it refuses."""

import csv
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


def counted(monkeypatch, *names):
    """A list that grows by a name whenever the work of a measure is done on a batch."""
    done = []
    for name in names:
        work = getattr(tasks, f"_{name}")

        def noted(*args, name=name, work=work):
            done.append(name)
            return work(*args)

        monkeypatch.setattr(tasks, f"_{name}", noted)
    return done


def test_what_is_there_is_not_computed_again(trained, tokens_folder, monkeypatch):
    run = run_of(trained, "hc")
    (run / session.RESULT).unlink(missing_ok=True)

    def again(*words):
        done.clear()
        assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 0
        return json.loads((run / session.RESULT).read_text())

    done = counted(monkeypatch, "angular", "causal", "permutation", "lens")
    again("--only", "causal", "permutation", "lens")
    assert done == ["causal", "permutation"] * 2 + ["lens"]
    first = again("--only", "permutation", "--permutation-threshold", "0")
    assert not done and first["settings"]["permutation"]["threshold"] == 0 and first["settings"]["causal"]["threshold"] == 0.45
    assert first["measures"]["permutation"]["trained"]["late"]["threshold"] == 0
    content = again()
    assert done == ["angular"]
    content = again("--no-control", "--causal-threshold", "0.3")
    assert not done and list(content["measures"]["causal"]["identity"]) == ["trained", "untrained"]
    assert content["measures"]["causal"]["identity"]["untrained"]["mean_of_ratios"]["late"]["threshold"] == 0.3
    content = again("--only", "angular", "--windows", "3")
    assert content["settings"]["angular"]["windows"] == 3 and content["settings"]["lens"]["windows"] == 4
    assert content["windows"]["angular"]["n"] == 3 and content["windows"]["lens"]["n"] == 4 and done == ["angular"]
    content = again("--only", "causal", "--no-control", "--windows", "3")
    assert list(content["measures"]["causal"]["identity"]) == ["trained"]  # the control was of other windows
    with np.load(run / session.ARRAYS) as arrays:
        assert not any(name.startswith("causal.untrained") for name in arrays.files)
    damaged = bytearray((run / session.ARRAYS).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (run / session.ARRAYS).write_bytes(damaged)
    again("--only", "lens")
    assert done == ["lens"]
    (run / session.RESULT).unlink()


def test_the_published_rule_stays_first(trained, tokens_folder, monkeypatch):
    run = run_of(trained, "attnres_block")
    for rule in ("state", "newest"):
        words = ["--only", "causal", "--skip", rule]
        assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 0
    content = json.loads((run / session.RESULT).read_text())
    assert list(content["measures"]["causal"]) == ["newest", "state"]
    late = content["measures"]["causal"]["newest"]["trained"]["max"]["late"]
    assert late["share"]["low"] is None and late["mean"]["value"] > 0  # an interval would not hold the value


def test_why_there_is_nothing_to_measure(tmp_path, tokens_folder, capsys):
    words = "train --design preln --n-layers 2 --d-model 8 --heads 2 --context 32 --steps 1 --batch-size 2 --validation-windows 2"
    assert main([*words.split(), "--data", str(tokens_folder), "--out", str(tmp_path)]) == 0
    assert main(["diagnose", str(tmp_path), "--data", str(tokens_folder), "--only", "mixing"]) == 2
    assert "nothing to measure: mixing: preln has neither parallel streams nor segments" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path), "--data", str(tokens_folder), *SMALL, "--only", "paths"]) == 0
    said = capsys.readouterr()
    assert "preln 2 × 8" in said.out and "nothing for this table" in said.out and "warning" not in said.err


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
        (
            ("--windows", "1", "--only", "usefulness"),
            "needs at least 2, got 1; give --windows 2 or more, or name the measures that you want with --only",
        ),
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
    for text in ("attnres_block: causal, untrained, state", "hc: permutation, trained", "hc: angular distance", "counted from 0"):
        assert text in page
    assert "different windows" not in page  # though not every design has every measure
    run = run_of(trained, "hc")
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, "--window-seed", "5", "--only", "lens"]) == 0
    assert main(["report", str(trained)]) == 0
    assert "The designs were measured on different windows: lens." in unwrapped(trained / "report" / "diagnosis_depth.html")
    assert "different windows" not in unwrapped(trained / "report" / "diagnosis_shares.html")  # which shows other measures
    page = unwrapped(trained / "report" / "diagnosis_shares.html")
    assert "the threshold that the tables count from (causal 0.45, permutation 0.15)" in page
    words = ["--only", "causal", "--causal-threshold", "0.3"]
    assert main(["diagnose", str(run), "--data", str(tokens_folder), *SMALL, *words]) == 0
    assert main(["report", str(trained)]) == 0
    page = unwrapped(trained / "report" / "diagnosis_shares.html")
    assert "no line is drawn: hc 0.3, attnres_block 0.45." in page and "count from (permutation 0.15)" in page
    with open(trained / "report" / "diagnosis.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    of_hc = [row for row in rows if row["design"] == "hc"]
    (share,) = [row for row in of_hc if (row["measure"], row["kind"]) == ("permutation late share", "trained")]
    late = json.loads((run / session.RESULT).read_text())["measures"]["permutation"]["trained"]["late"]["share"]
    assert (float(share["value"]), float(share["low"]), share["shape"]) == (late["value"], late["low"], "4x16")
    assert [row["index"] for row in of_hc if row["measure"] == "lens loss"] == list("01234")
    assert {row["rule"] for row in rows if row["measure"] == "causal late share mean_of_ratios"} == {"newest", "state", "identity"}
    for path in (trained / "cells").glob(f"*/{session.RESULT}"):  # as an earlier version wrote them
        content = json.loads(path.read_text())
        content["settings"] = {"causal_threshold": 0.45, "permutation_threshold": 0.15}
        del content["measures"]["paths"]["linear"], content["arrays_sha256"]
        path.write_text(json.dumps(content))
    assert main(["report", str(trained)]) == 0
    for path in (trained / "cells").glob(f"*/{session.RESULT}"):
        path.write_text("{")  # unreadable: left out, and the report is made all the same
    assert main(["report", str(trained)]) == 0
    assert not (trained / "report" / "diagnosis_heatmaps.html").exists()
    assert not (trained / "report" / "diagnosis.csv").exists()
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
