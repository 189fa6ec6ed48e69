"""Runs that are given away, and what transformers makes of them; nothing is downloaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from depthbench.cli import main
from depthbench.data.tokenizer import ByteTokenizer
from depthbench.files import read_json
from depthbench.hf.export import byte_tokenizer
from depthbench.study.load import load_run
from helpers import DESIGNS

transformers = pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "gated_residual.py"
TEXTS = ["plain text", "ünïcödé ☃ \n\ttabs  and spaces ", "<|endoftext|> stays text?"]


@pytest.fixture(scope="module")
def runs(tokens_folder, tmp_path_factory):
    """A short run of every design, and of a user's own."""
    out = tmp_path_factory.mktemp("runs")
    for design in (*DESIGNS, f"{EXAMPLE}:GatedResidual"):
        words = f"train --design {design} --n-layers 2 --d-model 16 --heads 4 --kv-heads 2 --context 32 --steps 3 --batch-size 4"
        assert main([*words.split(), "--validation-windows", "4", "--data", str(tokens_folder), "--out", str(out)]) == 0
    return {path.name.rpartition("-2x16")[0]: path for path in (out / "cells").iterdir()}


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory):
    """Where transformers copies the code of a checkpoint to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


def run_of(runs, design):
    return runs["GatedResidual" if ":" in design else design]


@pytest.mark.parametrize("design", [*DESIGNS, f"{EXAMPLE}:GatedResidual"], ids=[*DESIGNS, "own"])
def test_transformers_computes_the_same_logits(runs, tokens_folder, tmp_path, design):
    run, out = run_of(runs, design), tmp_path / "out"
    assert main(["export", str(run), "--to", str(out), "--data", str(tokens_folder)]) == 0
    trust = design != "preln"
    model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=trust, dtype=torch.float32).eval()
    assert type(model).__name__ == ("DepthBenchForCausalLM" if trust else "LlamaForCausalLM")
    x = torch.randint(257, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = model(input_ids=x).logits, load_run(run)(x)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.eos_token_id == 256 and tokenizer.model_max_length == 32
    prompt = tokenizer("the layer", return_tensors="pt").input_ids
    written = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=256)
    assert written.shape[1] <= prompt.shape[1] + 5
    with torch.no_grad():
        assert int(written[0, prompt.shape[1]]) == int(load_run(run)(prompt)[0, -1].argmax())


def test_the_byte_tokenizer_gives_the_ids_of_ours(tmp_path):
    from tokenizers import Tokenizer

    core = Tokenizer.from_str(byte_tokenizer(256).decode())
    core.encode_special_tokens = True
    for text in TEXTS:
        assert core.encode(text, add_special_tokens=False).ids == ByteTokenizer().encode(text).tolist()
        assert core.decode(core.encode(text).ids) == text


def test_an_export_never_overwrites(runs, tokens_folder, tmp_path, capsys):
    words = ["export", str(runs["preln"]), "--to", str(tmp_path / "out"), "--data", str(tokens_folder)]
    assert main(words) == 0
    assert main(words) == 2
    assert "holds a checkpoint already" in capsys.readouterr().err


def test_an_import_of_an_export_is_the_same_model(runs, tokens_folder, tmp_path, capsys):
    out, back = tmp_path / "out", tmp_path / "back"
    assert main(["export", str(runs["preln"]), "--to", str(out), "--data", str(tokens_folder)]) == 0
    assert main(["import", str(out), "--data", str(tokens_folder), "--out", str(back), "--validation-windows", "4"]) == 0
    (run,) = (back / "cells").iterdir()
    ours, theirs = load_run(runs["preln"]).state_dict(), load_run(run).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    first, second = (read_json(path / "result.json") for path in (runs["preln"], run))
    assert second["loss"] == pytest.approx(first["loss"], abs=1e-6) and second["tokens"] == 0
    assert main(["import", str(out), "--data", str(tokens_folder), "--out", str(back), "--validation-windows", "4"]) == 0
    assert len(list((back / "cells").iterdir())) == 1
    capsys.readouterr()
    assert main(["status", str(back), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"done": 1}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope_theta", 500000.0, "has rope_theta 500000.0, and preln is computed with 10000.0"),
        ("rms_norm_eps", 1e-5, "has rms_norm_eps 1e-05, and preln is computed with 1e-06"),
        ("attention_bias", True, "has attention_bias True"),
        ("vocab_size", 256, "vocabulary"),
        ("max_position_embeddings", 10**6, "corpus too small"),
    ],
)
def test_a_llama_of_another_kind_is_refused(runs, tokens_folder, tmp_path, capsys, key, value, message):
    out = tmp_path / "out"
    assert main(["export", str(runs["preln"]), "--to", str(out), "--data", str(tokens_folder)]) == 0
    config = read_json(out / "config.json")
    (out / "config.json").write_text(json.dumps(config | {key: value}))
    capsys.readouterr()
    assert main(["import", str(out), "--data", str(tokens_folder), "--out", str(tmp_path / "back")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "back").exists() or not list((tmp_path / "back").glob("cells/*/result.json"))


def test_other_families_and_broken_folders_are_refused(runs, tokens_folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(runs["hc"]), "--to", str(out), "--data", str(tokens_folder)]) == 0
    capsys.readouterr()

    def refused(path):
        assert main(["import", str(path), "--data", str(tokens_folder), "--out", str(tmp_path / "back")]) == 2
        return capsys.readouterr().err

    assert "wants to run code of its own repository" in refused(out)
    shutil.rmtree(out)
    out.mkdir()
    assert "it has no config.json" in refused(out)
    assert main(["export", str(tmp_path), "--to", str(out), "--data", str(tokens_folder)]) == 2
    assert "is no run folder" in capsys.readouterr().err
