"""Devices by name, and compilation: the same losses, and few variants whatever the depth."""

import functools
import math
from dataclasses import replace

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F

from depthbench import ModelShape, build_model
from depthbench.errors import UserError
from depthbench.train import loop
from depthbench.train.execution import Execution, compile_model, find_device
from train.runs import RECIPE, rows, training

# dynamo looks at .grad everywhere and makes instances of autograd functions, which nobody would hear of if warnings were no errors
WITHIN_DYNAMO = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.*should not be instantiated")
DEEP = ModelShape(12, 8, 2, d_ff=8, vocab_size=29, context=6)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "xpu", "meta", "cpu, cuda", "CPU "])
def test_an_unknown_device_is_one_clear_line(name):
    with pytest.raises(UserError, match=r"^unknown device '.*'; valid: cpu, cuda, cuda:N, mps$"):
        find_device(name)


def test_missing_devices_are_one_clear_line(monkeypatch, token_data, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=f"--device {name}: this PyTorch .* sees no CUDA device; use --device cpu"):
            find_device(name)
    with pytest.raises(UserError, match=r"--device mps: .* no Metal device; use --device cpu"):
        find_device("mps")
    with pytest.raises(UserError, match="sees no CUDA device"):
        training(tmp_path, token_data, execution=Execution(device="cuda"))


def test_a_cuda_device_beyond_the_last_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="--device cuda:2: there are 2 CUDA devices, numbered from 0"):
        find_device("cuda:2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("micro_batch_size", -1),
        ("checkpoint_steps", -1),
        ("checkpoint_seconds", -0.5),
        ("checkpoint_seconds", math.nan),
    ],
)
def test_impossible_executions_are_refused(name, value):
    with pytest.raises(UserError, match=f"{name} must be at least ., got {value}"):
        Execution(**{name: value})


@pytest.fixture
def strict_dynamo():
    """A clean compiler for which giving up and running uncompiled is an error."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@WITHIN_DYNAMO
@pytest.mark.parametrize("design", ["preln", "attnres"], ids=["fixed state", "growing state"])
def test_a_compiled_model_has_the_same_loss_and_gradients(strict_dynamo, design):
    x, losses, gradients = torch.arange(24).view(4, 6), [], []
    for compiled in (True, False):
        model = build_model(design, replace(DEEP, n_layers=2))
        if compiled:
            compile_model(model, backend="aot_eager")
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@WITHIN_DYNAMO
def test_a_compiled_run_gives_the_same_rows_and_never_gives_up(token_data, tmp_path, monkeypatch, strict_dynamo):
    """As many variants as there can be: a block unlike the others, and batches of two sizes each to train and to validate on."""
    monkeypatch.setattr(loop, "compile_model", functools.partial(compile_model, backend="eager"))
    recipe = replace(RECIPE, steps=2, validation_every=1, validation_windows=7)
    execution = Execution(compile=True, micro_batch_size=4)  # 6 = 4 + 2 sequences to train on, 7 = 4 + 3 to validate on
    compiled = training(tmp_path / "compiled", token_data, "keel", recipe=recipe, execution=execution).run()
    plain = training(tmp_path / "plain", token_data, "keel", recipe=recipe, execution=replace(execution, compile=False)).run()
    assert compiled.validation.loss == pytest.approx(plain.validation.loss, rel=1e-6)
    for ours, theirs in zip(rows(tmp_path / "compiled"), rows(tmp_path / "plain"), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@WITHIN_DYNAMO
@pytest.mark.parametrize("design", ["hc", "keel", "lns", "moda"])
def test_few_variants_are_compiled_whatever_the_depth(strict_dynamo, design):
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = build_model(design, DEEP)
    x = torch.arange(12).view(2, 6)
    expected = model(x)
    compile_model(model, backend=count)
    torch.testing.assert_close(model(x), expected)
    assert 1 <= len(graphs) <= 3


def test_names_of_weights_do_not_change_when_compiled():
    model = build_model("preln", DEEP)
    names = list(model.state_dict())
    compile_model(model, backend="eager")
    assert list(model.state_dict()) == names
