"""The command line: what each verb prints, and that bad input is one clear line with exit code 2."""

import json
import subprocess
import sys

import pytest

from depthbench import UserError, load_run
from depthbench.cli.main import main
from depthbench.data import TokenData
from depthbench.evaluate.validation import validate


def said(capsys, *words):
    """Exit code, stdout and stderr of a command."""
    try:
        code = main(list(map(str, words)))
    except SystemExit as leaving:
        code = leaving.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *words):
    """The one line of a refusal."""
    code, out, err = said(capsys, *words)
    assert code == 2 and out == ""
    assert err.startswith("depthbench: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["data", "prepare", "--help"]])
def test_help_has_an_example_and_needs_no_torch(words):
    code = f"import sys; from depthbench.cli import main\ntry: main({words!r})\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("False")
    assert "depthbench run quick" in done.stdout or "Example: depthbench" in done.stdout


def test_version_and_bare_call(capsys):
    assert said(capsys, "--version")[1].startswith("depthbench 0.")
    assert "usage" in said(capsys)[1]


def test_shapes(capsys):
    code, out, _ = said(
        capsys, *["shapes", "--budget", "405M", "--n-layers", "16", "24", "32", "--heads", "16", "--vocab-size", "50280"]
    )
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[2:5]] == [["16", "1216"], ["24", "1024"], ["32", "896"]]
    _, out, _ = said(capsys, *["shapes", "--suite", "ladder", "--json"])
    assert [group["name"] for group in json.loads(out)] == ["ladder-200m", "ladder-300m", "ladder-400m", "ladder-500m"]
    _, out, _ = said(capsys, *["shapes", "--budget", "302M", "--match", "backbone", "--n-layers", "70"])
    assert "608" in out and "beyond ±3%" in out


def test_designs(capsys):
    _, out, _ = said(capsys, "designs")
    for key in ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres", "attnres_block", "moda"):
        assert key in out
    _, out, _ = said(capsys, "designs", "hc")
    assert "2409.19606" in out and "streams=4" in out and "no decay  A0, b0" in out
    _, out, _ = said(capsys, "designs", "--json")
    assert json.loads(out)[0]["key"] == "preln"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(40):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number}: " + "the stream passes through the layers. " * 60)
    return tmp_path / "text"


def test_data(capsys, tmp_path, text):
    code, out, _ = said(capsys, "data", "prepare", text, "--tokenizer", "bytes", "--out", tmp_path / "tokens", "--json")
    assert code == 0 and json.loads(out)["vocab_size"] == 257
    code, out, _ = said(capsys, "data", "show", tmp_path / "tokens", "--verify")
    assert code == 0 and "every hash checked" in out and "40 files" in out


TRAIN = [
    "train",
    "--design",
    "hc",
    "--n-layers",
    "1",
    "--d-model",
    "16",
    "--heads",
    "2",
    "--context",
    "32",
    "--batch-size",
    "4",
    "--steps",
    "6",
    "--validation-windows",
    "4",
]


def test_train_once_and_again(capsys, tmp_path, tokens_folder):
    words = [*TRAIN, "--data", tokens_folder, "--out", tmp_path]
    code, out, err = said(capsys, *words)
    assert code == 0 and "validation loss" in out and "hc 1 × 16" in err
    code, out, _ = said(capsys, *words, "--json")
    result = json.loads(out)
    assert code == 0 and result["status"] == "done"
    model, data = load_run(result["run"]), TokenData.open(tokens_folder)
    assert validate(model, data, n_windows=4, batch_size=4, precision="fp32").loss == result["loss"]
    assert not model.training


def test_an_unfinished_run_is_not_loaded(capsys, tmp_path, tokens_folder):
    said(capsys, *TRAIN, "--data", tokens_folder, "--out", tmp_path)
    (run,) = (tmp_path / "cells").iterdir()
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        load_run(run)


STUDY = """
from depthbench import Budget
from depthbench.study.study import Study
from depthbench.train.recipe import Recipe
def study():
    return Study(name="mine", designs=("preln", "hc"), learning_rates=(4e-3,), n_layers=(1, 2, 4),
                 recipe=Recipe(8, 4, 4e-3, validation_windows=8),
                 budget=Budget(12e3, match="backbone", n_heads=2, vocab_size=257, context=32))
"""


def test_a_study_from_plan_to_report(capsys, tmp_path, tokens_folder):
    (tmp_path / "my_study.py").write_text(STUDY)
    name, out_folder = f"{tmp_path}/my_study.py:study", tmp_path / "out"
    code, out, _ = said(capsys, "plan", name, "--data", tokens_folder, "--seeds", 0, 1, "--json")
    plan = json.loads(out)
    assert (code, plan["cells"], len(plan["rows"])) == (0, 12, 6) and plan["estimated_seconds"] > 0
    assert not out_folder.exists()

    code, out, err = said(capsys, "run", name, "--data", tokens_folder, "--out", out_folder)
    assert code == 0 and "6/6" in err and "Depth trend" in out
    assert all((out_folder / "report" / f"loss_vs_aspect_ratio.{kind}").stat().st_size > 5000 for kind in ("html", "png", "pdf"))
    assert len((out_folder / "report" / "results.csv").read_text().splitlines()) == 7

    code, out, _ = said(capsys, "status", out_folder, "--json")
    assert json.loads(out)["counts"] == {"done": 6}
    assert "6 done" in said(capsys, "status", out_folder)[1]
    code, out, _ = said(capsys, "report", out_folder, "--json")
    assert code == 0 and json.loads(out)
    assert "all 6 cells are done" in said(capsys, "run", name, "--data", tokens_folder, "--out", out_folder)[2]


def test_one_folder_may_hold_several_recipes(capsys, tmp_path, tokens_folder):
    (tmp_path / "my_study.py").write_text(STUDY)
    words = ["run", f"{tmp_path}/my_study.py:study", "--data", tokens_folder, "--out", tmp_path / "out", "--designs", "preln"]
    for steps in (2, 3):
        code, out, _ = said(capsys, *words, "--n-layers", 1, 2, "--steps", steps)
        assert code == 0 and f"{steps} updates" in out and f"{5 - steps} updates" not in out  # a run reports on its own cells
    code, out, _ = said(capsys, "report", tmp_path / "out")
    assert code == 0 and "2 updates" in out and "3 updates" in out


def test_damaged_run_folders_are_named_and_the_rest_goes_on(capsys, tmp_path, tokens_folder):
    (tmp_path / "my_study.py").write_text(STUDY)
    words = ["run", f"{tmp_path}/my_study.py:study", "--data", tokens_folder, "--out", tmp_path / "out", "--steps", 2]
    said(capsys, *words, "--designs", "preln")
    first, second, third = sorted((tmp_path / "out" / "cells").iterdir())
    (first / "result.json").write_text('{"format": 1, "status": "done", "steps": 2, "loss": "abc"}')
    (second / "cell.json").write_text("{}")
    (third / "cell.json").unlink()
    code, out, _ = said(capsys, "status", tmp_path / "out", "--json")
    assert (code, json.loads(out)["counts"]) == (0, {"unreadable": 3})
    (third / "result.json").unlink()
    code, out, err = said(capsys, *words, "--designs", "preln", "hc")
    assert code == 1 and "delete it to train the cell again" in err and "no format number; delete its folder" in err
    assert "2 of 6 cells failed" in err and "hc" in out
    assert json.loads((third / "result.json").read_text())["status"] == "done"


def test_huge_numbers_are_only_numbers(capsys):
    assert said(capsys, *["plan", "quick", "--steps", "999999999999999999999999", "--flops-per-second", "1e30"])[0] == 0
    assert said(capsys, *["shapes", "--budget", "1e24", "--n-layers", "2"])[0] == 0


# --- bad input: one line, exit code 2, nothing on disk harmed --------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runn", "quick"], "did you mean 'run'"),
        (["run", "qick"], "unknown study 'qick'; did you mean 'quick'"),
        (["run"], "Missing from depthbench run: STUDY"),
        (["run", "quick", "--sedes", "1"], "did you mean --seeds"),
        (["plan", "quick", "--designs", "atnres"], "did you mean 'attnres'"),
        (["plan", "quick", "--designs", "hc[stream=2]"], "did you mean 'streams'"),
        (["plan", "quick", "--designs", "hc[streams=many]"], "must be int, got 'many'"),
        (["plan", "quick", "--steps", "5", "--tokens-per-parameter", "2"], "give one"),
        (["plan", "quick", "--learning-rates", "0"], "learning_rate must be above 0"),
        (["plan", "quick", "--learning-rates", "nan"], "must be a finite number"),
        (["plan", "quick", "--learning-rates", "-0.1"], "learning_rate must be above 0, got -0.1"),
        (["plan", "quick", "--learning-rates"], "--learning-rates is empty"),
        (["run", "tiny", "--seeds", "--designs", "hc"], "--seeds is empty"),
        (["plan", "quick", "--seeds", "-1"], "seeds must be whole numbers of at least 0"),
        (["plan", "quick", "--seeds", "1", "1"], "seeds repeat: 1 1"),
        (["plan", "quick", "--lr-policy", "per_cells"], "lr_policy must be 'fixed' or 'per_design' or 'per_cell'"),
        (["plan", "quick", "--lr-policy", "per_cell"], "needs at least 2 learning_rates"),
        (["plan", "quick", "--widen", "2"], "--widen is for a search"),
        (["plan", "tiny", "--widen", "-1"], "widen must be at least 0"),
        (["plan", "tiny", "--learning-rates", "0.5", "0.1"], "must increase"),
        (["plan", "ladder", "--n-layers", "4"], "--n-layers cannot replace them all"),
        (["plan", "quick", "--n-layers", "4000"], "too small for 4000 layers"),
        (["designs", "hcc"], "did you mean 'hc'"),
        (["designs", "hc[stream=2]"], "did you mean 'streams'"),
        (["run", "my_study.py"], "name the study in it as well: my_study.py:study"),
        (["plan", "quick", "--flops-per-second", "0"], "must be above 0"),
        ([*TRAIN, "--seed", "99999999999999999999999"], "below 2**63"),
        (["shapes", "--budget", "lots", "--n-layers", "3"], "cannot read 'lots'"),
        (["shapes", "--budget", "405M"], "needs layer counts"),
        (["shapes", "--budget", "100k", "--n-layers", "32"], "use fewer layers, fewer heads or a larger budget"),
        (["shapes", "--suite", "400mm"], "did you mean '400m'"),
        (["shapes"], "give either"),
        (["shapes", "--n-layers", "x", "--budget", "1M"], "Error parsing --n-layers"),
        ([*TRAIN, "--d-model", "17"], "not divisible by n_heads 2; try d_model 16 or 18"),
        ([*TRAIN, "--d-model", "18"], "is odd"),
        ([*TRAIN, "--design", "hcc"], "did you mean 'hc'"),
        ([*TRAIN, "--design", "nowhere/mine.py:Mine"], "not a Python file that exists"),
        ([*TRAIN, "--learning-rate", "inf"], "must be a finite number"),
        ([*TRAIN, "--steps", "0"], "steps must be at least 1"),
        ([*TRAIN, "--device", "cuda"], "sees no CUDA device"),
        ([*TRAIN, "--device", "gpu"], "unknown device 'gpu'"),
        ([*TRAIN, "--precision", "fp8"], "precision must be 'fp32' or 'bf16'"),
        ([*TRAIN, "--validation-windows", "100000"], "windows"),
        ([*TRAIN, "--context", "10000000"], "window"),
        ([*TRAIN, "--vocab-size", "100"], "vocabulary of 257"),
        ([*TRAIN, "--parallel", "fsdp"], "add --processes-per-run N"),
        ([*TRAIN, "--processes-per-run", "2", "--parallel", "fdsp"], "parallel must be 'ddp' or 'fsdp', got 'fdsp'"),
        (["run", "quick", "--slurm", "gpus=2", "--device", "cuda:1", "--processes-per-run", "2"], "'cuda:1' cannot be shared by 2"),
        ([*TRAIN, "--processes-per-run", "0"], "processes must be at least 1"),
        (["run", "quick", "--slurm", "gpus=1"], "--device cpu does not use them; add --device cuda"),
        (["run", "quick", "--slurm", "time=5", "--device", "cuda"], "ask for them: --slurm gpus=1"),
        (["run", "quick", "--slurm", "time=5", "--workers", "2"], "give one of them"),
        (["run", "quick", "--slurm", "nodes=2"], "needs --processes-per-run 2 or a multiple of it"),
        (["run", "quick", "--slurm", "gpus=2", "--device", "cuda", "--processes-per-run", "4"], "needs as many GPUs"),
        (["run", "quick", "--slurm", "partion=gpu"], "did you mean 'partition'"),
        (["status", "nowhere"], "is not a folder"),
        (["report", "nowhere"], "is not a folder"),
        (["data", "show", "nowhere"], "manifest.json"),
        (["data", "prepare", "nowhere.txt"], "nowhere.txt"),
        (["data", "prepare"], "give at least one"),
        (["data", "prepare", "stdlib", "--tokenizer", "byte"], "did you mean 'bytes'"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_input(capsys, monkeypatch, tmp_path, tokens_folder, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if words[0] == "train":
        words = [*words, "--data", tokens_folder]
    assert message in refused(capsys, *words)
    assert not list(tmp_path.rglob("cell.json"))  # what is refused leaves nothing behind


def test_unusable_sources(capsys, tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)))
    for name in ("empty.txt", "binary.txt"):
        assert "no text" in refused_after_progress(capsys, "data", "prepare", tmp_path / name, "--out", tmp_path / "tokens")
    assert not (tmp_path / "tokens" / "manifest.json").exists()


def test_token_files_that_do_not_match_their_manifest(capsys, tmp_path, text):
    tokens = tmp_path / "tokens"
    said(capsys, "data", "prepare", text, "--out", tokens)
    with open(tokens / "validation.bin", "r+b") as file:
        file.write(b"\x07")
    assert "validation" in refused(capsys, *TRAIN, "--data", tokens, "--out", tmp_path / "out")
    with open(tokens / "train.bin", "ab") as file:
        file.write(b"\x07\x00")
    assert "train" in refused(capsys, *TRAIN, "--data", tokens, "--out", tmp_path / "out")


def test_a_checkpoint_of_another_cell(capsys, tmp_path, tokens_folder):
    said(capsys, *TRAIN, "--data", tokens_folder, "--out", tmp_path, "--seed", 1)
    (other,) = (tmp_path / "cells").iterdir()
    words = [*TRAIN, "--data", tokens_folder, "--out", tmp_path / "second"]
    said(capsys, *words)
    (mine,) = (tmp_path / "second" / "cells").iterdir()
    (mine / "result.json").unlink()
    for checkpoint in (other / "checkpoint").iterdir():
        (mine / "checkpoint" / checkpoint.name).write_bytes(checkpoint.read_bytes())
    assert "belongs to cell" in refused_after_progress(capsys, *words)


def refused_after_progress(capsys, *words):
    """As `refused`, where lines of progress may come before."""
    code, _, err = said(capsys, *words)
    assert code == 2
    return err.splitlines()[-1]


def test_a_run_folder_made_by_a_newer_version(capsys, tmp_path, tokens_folder):
    words = [*TRAIN, "--data", tokens_folder, "--out", tmp_path]
    said(capsys, *words)
    (run,) = (tmp_path / "cells").iterdir()
    content = json.loads((run / "cell.json").read_text()) | {"format": 99}
    (run / "cell.json").write_text(json.dumps(content))
    assert "newer DepthBench" in refused(capsys, *words)
    assert json.loads((run / "cell.json").read_text()) == content


def test_an_output_folder_that_cannot_be_written(capsys, tmp_path, tokens_folder):
    (tmp_path / "file").touch()
    assert "cannot write to" in refused(capsys, *TRAIN, "--data", tokens_folder, "--out", tmp_path / "file")


def test_a_full_disk_is_one_line_and_harms_nothing(capsys, monkeypatch, tmp_path, tokens_folder):
    words = [*TRAIN, "--data", tokens_folder, "--out", tmp_path, "--checkpoint-steps", 2]

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("depthbench.train.checkpoint.save_file", full)
        assert "No space left on device" in refused_after_progress(capsys, *words)
    code, out, _ = said(capsys, *words)
    assert code == 0 and "validation loss" in out


def test_a_design_that_breaks_the_protocol(capsys, tmp_path, tokens_folder):
    (tmp_path / "bad.py").write_text(
        "from depthbench import Link, Residual\n"
        "class L(Link):\n"
        "    def read(self, state): return state[..., None, :]\n"
        "    def write(self, state, y): return state + y\n"
        "class Bad(Residual):\n"
        "    def link(self, i): return L()\n"
    )
    line = refused(capsys, *TRAIN, "--design", f"{tmp_path}/bad.py:Bad", "--data", tokens_folder, "--out", tmp_path)
    assert "read" in line and "returned" in line


def test_a_report_of_nothing(capsys, tmp_path):
    (tmp_path / "cells").mkdir()
    assert "no finished results" in refused(capsys, "report", tmp_path)
