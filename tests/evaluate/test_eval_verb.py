"""`depthbench eval` on runs and checkpoints: what it writes, that it continues, what it refuses, and the report of it."""

import csv
import json

import numpy as np
import pytest
import torch

from depthbench.cli import main
from depthbench.evaluate import session
from depthbench.study.load import load_run

RIDDLES = [
    {"task": "riddles", "group": "stem", "prompt": "Q: {q}\nA:", "target": " {a}", "id": "key"},
    *({"key": f"r{n}", "q": f"what {'is deep ' * n}?", "a": f"a layer {'of a stream ' * (n % 3)}"} for n in range(12)),
]
SUMS = [{"prompt": f"{n} and {n} is ", "target": f"{2 * n}", "id": n} for n in range(5)]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, rows in (("riddles", RIDDLES), ("sums", SUMS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(folder / "riddles.jsonl"), str(folder / "sums.jsonl")]


@pytest.fixture(scope="module")
def trained(tokens_folder, tmp_path_factory):
    """A study folder with two short runs."""
    out = tmp_path_factory.mktemp("runs")
    for layers, width in ((2, 32), (4, 16)):
        words = f"train --design preln --n-layers {layers} --d-model {width} --heads 2 --context 48 --steps 6 --batch-size 4"
        assert main([*words.split(), "--validation-windows", "4", "--data", str(tokens_folder), "--out", str(out)]) == 0
    return out


def evaluate(path, tokens_folder, tasks, *words):
    return main(["eval", str(path), "--tasks", *tasks, "--data", str(tokens_folder), *words])


def run_of(trained, shape="2x32"):
    return next(path for path in (trained / "cells").iterdir() if f"-{shape}-" in path.name)


def by_loop(model, rows):
    """Nats and bytes of documents of bytes, one by one, for prompts without white space at their end."""
    nll = n_bytes = 0
    for row in rows:
        prompt, target = f"Q: {row['q']}\nA:".encode(), f" {row['a']}".encode()
        whole, context = list(prompt + target), model.shape.context
        for start in range(0, len(target), context):
            end = len(prompt) + min(start + context, len(target))
            piece = whole[max(0, end - context - 1) : end]
            scored = end - len(prompt) - start
            with torch.no_grad():
                logits = model(torch.tensor([piece[:-1]]))[0, -scored:]
            nll -= float(logits.double().log_softmax(-1)[range(scored), piece[-scored:]].sum())
        n_bytes += len(target)
    return nll, n_bytes


def test_what_it_writes_is_what_a_plain_loop_gives(trained, tokens_folder, tasks, capsys):
    assert evaluate(trained, tokens_folder, tasks) == 0
    shown = capsys.readouterr().out
    assert "riddles" in shown and "± " in shown and "12 documents" in shown
    run = run_of(trained)
    content = json.loads((run / "evaluation.json").read_text())
    task = content["tasks"]["riddles"]
    nll, n_bytes = by_loop(load_run(run), RIDDLES[1:])
    assert task["tokens"] == task["bytes"] == n_bytes
    assert task["nll"] == pytest.approx(nll / n_bytes, abs=1e-6)
    assert task["bits_per_byte"] == pytest.approx(task["nll"] / np.log(2))
    assert content["groups"]["stem"]["nll"] == task["nll"] and content["groups"]["sums"]["tasks"] == ["sums"]
    rows = [json.loads(line) for line in (run / "evaluation" / "riddles.jsonl").read_text().splitlines()]
    assert rows[0]["task"] == "riddles" and sorted(row["id"] for row in rows[1:]) == sorted(row["key"] for row in RIDDLES[1:])
    assert sum(row["nll"] for row in rows[1:]) == pytest.approx(nll, rel=1e-6)


def test_it_goes_on_where_it_was_killed(trained, tokens_folder, tasks, monkeypatch):
    run = run_of(trained, "4x16")
    assert evaluate(run, tokens_folder, tasks) == 0
    whole = json.loads((run / "evaluation.json").read_text())
    path = run / "evaluation" / "riddles.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:7])  # torn
    (run / "evaluation.json").unlink()
    asked = []
    real = session.score

    def counted(documents, *rest):
        asked.append([item.id for item in documents])
        return real(documents, *rest)

    monkeypatch.setattr(session, "score", counted)
    assert evaluate(run, tokens_folder, tasks) == 0
    assert [len(ids) for ids in asked] == [8, 0]
    again = json.loads((run / "evaluation.json").read_text())
    assert again["tasks"]["riddles"]["nll"] == pytest.approx(whole["tasks"]["riddles"]["nll"], rel=1e-6)
    assert again["tasks"]["sums"] == whole["tasks"]["sums"]


def test_another_text_is_scored_anew_and_other_tasks_are_kept(trained, tokens_folder, tasks, tmp_path):
    run = run_of(trained, "4x16")
    assert evaluate(run, tokens_folder, tasks) == 0
    before = json.loads((run / "evaluation.json").read_text())["tasks"]
    changed = tmp_path / "sums.jsonl"
    changed.write_text("".join(json.dumps(row | {"target": "7"}) + "\n" for row in SUMS))
    assert evaluate(run, tokens_folder, [str(changed)]) == 0
    after = json.loads((run / "evaluation.json").read_text())["tasks"]
    assert after["riddles"] == before["riddles"] and after["sums"]["nll"] != before["sums"]["nll"]
    assert evaluate(run, tokens_folder, tasks) == 0
    assert json.loads((run / "evaluation.json").read_text())["tasks"] == before


def test_batches_change_nothing_but_rounding(trained, tokens_folder, tasks, capsys):
    found = []
    for size in ("1", "16"):
        for path in (run_of(trained) / "evaluation").glob("*.jsonl"):
            path.unlink()
        assert evaluate(run_of(trained), tokens_folder, tasks, "--batch-size", size, "--json") == 0
        found.append(json.loads(capsys.readouterr().out)[0]["tasks"])
    for name in ("riddles", "sums"):
        assert found[0][name]["nll"] == pytest.approx(found[1][name]["nll"], abs=1e-6)


def test_an_exported_checkpoint_scores_the_same(trained, tokens_folder, tasks, tmp_path, capsys):
    pytest.importorskip("transformers")
    run, out = run_of(trained), tmp_path / "hf"
    assert main(["export", str(run), "--to", str(out), "--data", str(tokens_folder)]) == 0
    assert main(["eval", "--hf", str(out), "--tasks", *tasks, "--out", str(tmp_path / "eval")]) == 0
    assert evaluate(run, tokens_folder, tasks) == 0
    ours, theirs = (json.loads((path / "evaluation.json").read_text())["tasks"] for path in (run, tmp_path / "eval"))
    for name in ("riddles", "sums"):
        assert theirs[name]["nll"] == pytest.approx(ours[name]["nll"], abs=1e-5)
        assert theirs[name]["tokens"] == ours[name]["tokens"] and theirs[name]["sha256"] == ours[name]["sha256"]


def test_the_report_has_the_scores(trained, tokens_folder, tasks, tmp_path):
    assert evaluate(trained, tokens_folder, tasks) == 0
    out = tmp_path / "report"
    assert main(["report", str(trained), "--out", str(out)]) == 0
    assert (out / "nll_vs_aspect_ratio.png").stat().st_size > 10_000
    rows = list(csv.DictReader((out / "evaluation.csv").read_text().splitlines()))
    assert {(row["task"], row["n_layers"]) for row in rows} == {(task, n) for task in ("riddles", "sums") for n in ("2", "4")}
    for run in (trained / "cells").iterdir():
        (run / "evaluation.json").unlink()
    assert main(["report", str(trained), "--out", str(out)]) == 0
    assert not (out / "evaluation.csv").exists() and not (out / "nll_vs_aspect_ratio.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "humanevel"), "unknown task 'humanevel'; did you mean 'humaneval'?"),
        (("--tasks", "none.jsonl"), "cannot read the task file none.jsonl"),
        (("--precision", "fp64"), "precision must be one of fp32, bf16, got 'fp64'"),
        (("--batch-size", "0"), "batch_size must be at least 1, got 0"),
        (("--device", "cuda:9"), "--device cuda:9"),
        (("--hf", "x"), "give either run folders, or one Hugging Face checkpoint"),
        (("--threads", "-1"), "threads must be at least 1"),
    ],
)
def test_bad_options(trained, tokens_folder, tasks, capsys, words, message):
    given = [] if "--tasks" in words else ["--tasks", *tasks]
    assert main(["eval", str(run_of(trained)), *given, "--data", str(tokens_folder), *words]) == 2
    assert message in capsys.readouterr().err


def test_another_tokenizer_is_refused(trained, tasks, tmp_path, capsys):
    from depthbench.data import prepare

    text = tmp_path / "text"
    text.mkdir()
    for number in range(9):
        (text / f"{number}.txt").write_text(f"{number} layers and streams and norms " * 60)
    prepare([str(text)], tmp_path / "bpe", tokenizer="bpe-270", validation_fraction=0.3, quiet=True)
    assert main(["eval", str(run_of(trained)), "--tasks", *tasks, "--data", str(tmp_path / "bpe")]) == 2
    assert "was trained on tokens of bytes" in capsys.readouterr().err


def test_text_is_written_on(trained, tokens_folder, capsys):
    run = str(run_of(trained))
    words = ["generate", run, "--data", str(tokens_folder), "--prompt", "the layer", "--max-tokens", "60"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("the layer") and len(text) > 20
    assert main([*words, "--json", "--temperature", "1", "--samples", "2"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert one["text"] != two["text"] and 0 <= one["tokens"] <= 60
    assert main([*words, "--prompt", "long " * 40]) == 0
    assert "the model sees the last 48" in capsys.readouterr().err
    assert main([*words, "--max-tokens", "0"]) == 2
    assert main(["generate", str(trained), "--data", str(tokens_folder)]) == 2
    assert "holds 2 finished runs; give one of them" in capsys.readouterr().err
