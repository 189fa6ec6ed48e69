"""Hugging Face checkpoints: one tiny model a family, built here, saved, and diagnosed from its folder."""

import json

import numpy as np
import pytest
import torch

from depthbench import ModelShape, build_model
from depthbench.cli import main
from depthbench.diagnose import scores
from depthbench.diagnose.hf import HFSubject, open_checkpoint
from depthbench.diagnose.hf_families import FAMILIES, Family
from depthbench.diagnose.lens import lens
from depthbench.diagnose.ours import OurSubject
from depthbench.errors import UserError
from depthbench.hf import hub

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 300, "n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}
NARROW = {"sliding_window": 4}  # so that local attention is local


def made(family, **changes):
    """A model with random weights of ordinary size: at initial ones nothing depends on anything."""
    sizes = GPT2 if family == "gpt2" else SIZES | (NARROW if family.startswith("gemma") or family == "mistral" else {})
    config = transformers.AutoConfig.for_model(family, **{**sizes, **changes})
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
            centre = 1.0 if parameter.ndim < 2 and "norm" in name and not family.startswith("gemma") else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(params=FAMILIES, scope="module")
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = made(request.param)
    model.save_pretrained(folder)
    return request.param, folder, model


def test_every_family_from_its_folder(saved):
    family, folder, model = saved
    subject, _ = open_checkpoint(str(folder), device="cpu", precision="fp32", allow_pickle=False)
    assert subject.design == family and subject.depth == 3 and subject.context == 32
    windows = torch.randint(300, (3, 12), generator=torch.Generator().manual_seed(0))
    with subject.computing():
        passes = subject.begin(windows)
        found, swapped = scores.skips(passes), scores.swaps(passes)
        shown = lens(passes)
        wanted = _losses(model, windows)
        np.testing.assert_allclose(found.loss, wanted, rtol=1e-5)
        np.testing.assert_allclose(shown.loss[:, -1], wanted, rtol=1e-5)
        for block in range(3):
            np.testing.assert_allclose(found.pruned[:, block], _losses_without(model, windows, subject, block), rtol=1e-5)
        for i, j in ((0, 1), (0, 2), (1, 2)):
            np.testing.assert_allclose(swapped.swapped[:, i, j], _losses_swapped(model, windows, i, j), rtol=1e-5)
    assert np.isfinite(found.ratio[:, 0, 2]).all() and found.ratio[:, 0, 2].min() > 0


def _losses(model, windows):
    logits = model(input_ids=windows, use_cache=False).logits.double()
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), windows[:, 1:].flatten(), reduction="none")
    return losses.view(windows.shape[0], -1).mean(1).numpy()


def _losses_without(model, windows, subject, block):
    """By the model's own forward, with a hook that undoes the block."""
    layer = model.get_submodule(subject.family.blocks)[block]

    def undo(module, args, kwargs, output):
        before = args[0] if args else kwargs["hidden_states"]
        return (before, *output[1:]) if isinstance(output, tuple) else before

    hook = layer.register_forward_hook(undo, with_kwargs=True)
    try:
        return _losses(model, windows)
    finally:
        hook.remove()


def _losses_swapped(model, windows, i, j):
    prefix = FAMILIES[model.config.model_type].blocks
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = dict(before)
    for a, b in ((i, j), (j, i)):
        for name in [name for name in before if name.startswith(f"{prefix}.{a}.")]:
            after[name] = before[name.replace(f"{prefix}.{a}.", f"{prefix}.{b}.", 1)]
    model.load_state_dict(after)
    try:
        return _losses(model, windows)
    finally:
        model.load_state_dict(before)


def test_llama_is_our_preln():
    """The same weights give the same scores."""
    shape = ModelShape(n_layers=3, d_model=16, n_heads=4, n_kv_heads=2, d_ff=24, vocab_size=300, context=32)
    theirs = made("llama", rms_norm_eps=1e-6, tie_word_embeddings=False)
    names = {"embedding": "model.embed_tokens", "head": "lm_head", "norm": "model.norm"}
    ours = build_model("preln", shape).eval()
    held = dict(theirs.named_parameters())
    parts = {
        "attention.": "self_attn.",
        "mlp.": "mlp.",
        "attention_link.norm.": "input_layernorm.",
        "mlp_link.norm.": "post_attention_layernorm.",
    }
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.startswith("blocks."):
                _, block, rest = name.split(".", 2)
                part = next(part for part in parts if rest.startswith(part))
                rest = rest.removeprefix(part).replace("gain", "weight")
                if part.startswith("attention."):
                    rest = f"{rest[0]}_proj.weight"
                elif part == "mlp.":
                    rest = f"{rest.split('.')[0]}_proj.weight"
                parameter.copy_(held[f"model.layers.{block}.{parts[part]}{rest}"])
            else:
                parameter.copy_(held[f"{names[name.split('.')[0]]}.weight"])
    windows = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(0))
    a, b = OurSubject(ours), HFSubject(theirs, FAMILIES["llama"], "llama")
    with torch.no_grad():
        one, two = a.begin(windows), b.begin(windows)
        np.testing.assert_allclose(scores.angular(one), scores.angular(two), atol=1e-5)
        np.testing.assert_allclose(scores.skips(one).ratio, scores.skips(two).ratio, rtol=1e-4)
        np.testing.assert_allclose(scores.swaps(one).swapped, scores.swaps(two).swapped, rtol=1e-5)


def test_an_adapter_that_is_wrong_is_found_out():
    model = made("llama")
    wrong = Family(norm="model.layers.0.input_layernorm")
    with pytest.raises(UserError, match="gives logits that differ from its own by"):
        HFSubject(model, wrong, "llama")


@pytest.fixture
def llama(tmp_path):
    made("llama").save_pretrained(tmp_path / "tiny-llama")
    return tmp_path / "tiny-llama"


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_command(llama, tokens_folder, tmp_path, capsys):
    words = ["diagnose", "--hf", str(llama), "--data", str(tokens_folder), "--windows", "4", "--length", "16"]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    (content,) = json.loads(capsys.readouterr().out)
    assert {"angular", "causal", "pruning", "permutation", "lens", "usefulness"} == set(content["measures"])
    assert set(content["measures"]["permutation"]) == {"trained", "untrained"}
    assert content["without"] == ["paths: for models of this package alone", "mixing: for models of this package alone"]
    assert (tmp_path / "out" / "diagnosis.npz").exists()


def test_text_is_read_by_the_checkpoints_own_tokenizer(llama, tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {chr(97 + i): i for i in range(26)} | {"?": 26}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(llama)
    (tmp_path / "text.txt").write_text("a b c d e f g h " * 40)
    words = ["diagnose", "--hf", str(llama), "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    assert main([*words, "--length", "16", "--only", "angular"]) == 0
    assert "tiny-llama" in capsys.readouterr().out
    edit(llama, vocab_size=300)
    assert main([*words, "--length", "64"]) == 2
    assert "longer than the model's context of 32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "family 'mamba', for which there is no adapter"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel, and this needs a causal decoder"),
        ({"is_encoder_decoder": True}, "this needs a causal decoder"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "wants to run code of its own repository (AutoModelForCausalLM)"),
    ],
)
def test_what_is_no_plain_decoder_is_refused(llama, tokens_folder, capsys, changes, message):
    edit(llama, **changes)
    assert main(["diagnose", "--hf", str(llama), "--data", str(tokens_folder)]) == 2
    assert message in capsys.readouterr().err


def test_pickled_weights_are_refused_unless_asked_for(llama, tokens_folder, tmp_path, capsys):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    torch.save(model.state_dict(), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    words = ["diagnose", "--hf", str(llama), "--data", str(tokens_folder), "--only", "angular", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "reading a pickle can run any code" in capsys.readouterr().err
    assert main([*words, "--allow-pickle"]) == 0
    (llama / "pytorch_model.bin").unlink()
    assert main(words) == 2
    assert "has no weights (*.safetensors)" in capsys.readouterr().err


def test_other_bad_checkpoints(llama, tokens_folder, tmp_path, capsys):
    def refused(*words):
        assert main(["diagnose", *words]) == 2
        return capsys.readouterr().err

    assert "is no checkpoint: it has no config.json" in refused("--hf", str(tmp_path))
    assert "has no tokenizer that can be read; give --data" in refused("--hf", str(llama))
    small = tmp_path / "small"
    made("llama", vocab_size=100).save_pretrained(small)
    assert "has a vocabulary of 100" in refused("--hf", str(small), "--data", str(tokens_folder))
    broken = made("llama")
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    broken.save_pretrained(tmp_path / "broken")
    assert "block 1 of broken (counted from 0) puts out a value that is not finite; its weights are damaged" in refused(
        "--hf", str(tmp_path / "broken"), "--data", str(tokens_folder)
    )
    (llama / "model.safetensors").write_bytes(b"half")
    assert "cannot read the checkpoint" in refused("--hf", str(llama), "--data", str(tokens_folder))


def rewrite(folder, change):
    """The tensors of a checkpoint, changed in place by `change`."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_are_not_all_there_are_refused_by_name(llama, tokens_folder, tmp_path, capsys):
    words = ["diagnose", "--hf", str(llama), "--data", str(tokens_folder), "--only", "angular", "--out", str(tmp_path / "out")]
    name = "model.layers.1.mlp.down_proj.weight"
    rewrite(llama, lambda tensors: tensors.update(extra=torch.ones(2)))
    assert main(words) == 0
    assert "warning: " in (said := capsys.readouterr().err) and "has a tensor that its model does not use: extra" in said
    rewrite(llama, lambda tensors: tensors.update({name: torch.ones(3, 3)}))
    assert main(words) == 2
    assert f"{name} is [3, 3] and should be [16, 24]; restore" in capsys.readouterr().err
    rewrite(llama, lambda tensors: [tensors.pop(each) for each in (name, "model.norm.weight")])
    assert main(words) == 2
    assert f"lacks the tensor {name} (and 1 more)" in capsys.readouterr().err


def test_another_checkpoint_of_the_same_name_does_not_replace_a_result(llama, tokens_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(llama)
    words = ["diagnose", "--data", str(tokens_folder), "--only", "angular"]
    assert main([*words, "--hf", "."]) == 0
    assert "tiny-llama" in capsys.readouterr().out
    result = llama / "diagnosis" / "tiny-llama" / "diagnosis.json"
    assert json.loads(result.read_text())["about"]["name"] == "tiny-llama"
    other = tmp_path / "other" / "tiny-llama"
    made("llama", rms_norm_eps=1e-5, num_hidden_layers=2).save_pretrained(other)
    assert main([*words, "--hf", str(other)]) == 2
    said = capsys.readouterr().err
    assert f"holds the result of another checkpoint, {llama}; give --out" in said
    rewrite(llama, lambda tensors: tensors["model.norm.weight"].mul_(2))  # the same checkpoint, trained on
    assert main([*words, "--hf", str(llama)]) == 0
    assert main([*words, "--hf", str(other), "--out", "elsewhere"]) == 0


def test_names_that_are_neither_here_nor_within_reach(tmp_path, monkeypatch, capsys):
    def refused(name):
        assert main(["diagnose", "--hf", name]) == 2
        return capsys.readouterr().err

    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid/path")
    asked = []
    monkeypatch.setattr(hub, "can_be_reached", lambda host: asked.append(host))
    for name in ("/none/here", "./none", "~/none", "a/b/c"):
        assert f"{name} does not exist: no such folder" in refused(name)
    assert not asked
    (tmp_path / "config.json").write_text("{}")
    assert "is a file; give the folder" in refused(str(tmp_path / "config.json"))
    assert "someone/model is no folder here and not in the local cache, and the hub (hub.invalid)" in refused("someone/model")
    assert asked == ["hub.invalid"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.check_name("someone/model")  # the library answers at once
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    hub.check_name("someone/model")
    assert asked == ["hub.invalid"]


def test_the_hub_is_not_waited_for():
    assert not hub.can_be_reached("hub.invalid", patience=1)


def test_texts_that_cannot_be_read(llama, tmp_path, capsys):
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(llama)
    assert main(["diagnose", "--hf", str(llama), "--text", str(tmp_path / "none.txt")]) == 2
    assert "none.txt does not exist" in capsys.readouterr().err
    (tmp_path / "latin").write_bytes("é".encode("latin-1"))
    assert main(["diagnose", "--hf", str(llama), "--text", str(tmp_path / "latin")]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
