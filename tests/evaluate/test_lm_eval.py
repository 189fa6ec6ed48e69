"""Our model in lm-evaluation-harness, beside the harness's own class on the exported folder. Nothing is downloaded."""

import json

import pytest

from depthbench.cli import main
from depthbench.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # of the harness and what it imports
pytest.importorskip("transformers")
pytest.importorskip("lm_eval")

PAIRS = [
    ("the layer reads", " the stream"),
    ("ends in space ", "and goes on"),
    ("", "no context at all"),
    ("a context that is much longer than the thirty-two tokens of the model", " end"),
    ("x", " depth"),
]
TEXTS = ["short", "a text that is longer than the context of thirty-two tokens, so it comes in pieces", "x"]


@pytest.fixture(scope="module")
def both(tokens_folder, tmp_path_factory):
    """A run as our model, and its export as the harness's own."""
    from lm_eval.models.huggingface import HFLM

    from depthbench.evaluate.lm_eval_model import DepthBenchLM

    out = tmp_path_factory.mktemp("runs")
    words = "train --design preln --n-layers 2 --d-model 32 --heads 4 --context 32 --steps 30 --batch-size 8"
    assert main([*words.split(), "--validation-windows", "4", "--data", str(tokens_folder), "--out", str(out)]) == 0
    assert main(["export", str(out), "--to", str(out / "hf"), "--data", str(tokens_folder)]) == 0
    theirs = HFLM(pretrained=str(out / "hf"), device="cpu", dtype="float32", batch_size=2)
    return DepthBenchLM(str(out), str(tokens_folder), batch_size=2, threads=1), theirs, out


def requests(kind, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, item, number) for number, item in enumerate(arguments)]


def test_log_likelihoods_are_those_of_the_harness(both):
    ours, theirs, _ = both
    for one, two in zip(
        ours.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True),
        theirs.loglikelihood(requests("loglikelihood", *PAIRS), disable_tqdm=True),
        strict=True,
    ):
        assert one[0] == pytest.approx(two[0], abs=1e-4) and one[1] == two[1]


def test_rolling_log_likelihoods_are_those_of_the_harness(both):
    ours, theirs, _ = both
    texts = requests("loglikelihood_rolling", *((text,) for text in TEXTS))
    found, due = (model.loglikelihood_rolling(texts, disable_tqdm=True) for model in (ours, theirs))
    assert found == pytest.approx(due, abs=1e-3)


def test_greedy_texts_are_those_of_the_harness(both):
    ours, theirs, _ = both
    prompts = [
        ("the layer", {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False}),
        ("a context that is much longer than the thirty-two tokens", {"until": [" a"], "max_gen_toks": 10, "do_sample": False}),
        ("norm", {"until": ["e", "the"], "max_gen_toks": 20}),
    ]
    found, due = (model.generate_until(requests("generate_until", *prompts), disable_tqdm=True) for model in (ours, theirs))
    assert found == due


def task_folder(path):
    """A task of the harness's kind, with rows in a file."""
    rows = [{"question": f"the {word}", "choices": [" reads", " xyzzy"], "answer": 0} for word in ("layer", "norm", "stream")]
    (path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (path / "made_up.yaml").write_text(
        f"""task: made_up
dataset_path: json
dataset_kwargs:
  data_files:
    test: {path / "rows.json"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
""",
        encoding="utf-8",
    )
    return path


def test_eval_hands_tasks_to_the_harness(both, tokens_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    _, _, out = both
    words = ["eval", str(out), "--lm-eval", "made_up", "--include-path", str(task_folder(tmp_path)), "--data", str(tokens_folder)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "made_up" in shown and "acc" in shown and "lm_eval.json" in shown
    (path,) = out.glob("cells/*/evaluation/lm_eval.json")
    assert 0 <= json.loads(path.read_text())["results"]["made_up"]["acc,none"] <= 1
    assert main([*words[:3], "no_such_task", *words[4:]]) == 2
    assert "the harness has no task no_such_task" in capsys.readouterr().err


def test_several_runs_are_too_many_for_one_model(tmp_path):
    from depthbench.evaluate.lm_eval_model import DepthBenchLM

    with pytest.raises(UserError, match="does not exist"):
        DepthBenchLM(str(tmp_path / "none"))
