"""Layer statistics: what they say against plain code, that watching changes nothing, and that they go on where a run does."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from depthbench import build_model
from depthbench.data import training_batch
from depthbench.files import LAYERS_FILE
from depthbench.model.backbone import rope_table
from depthbench.model.transformer import Transformer
from depthbench.residual.preln import PreLN
from depthbench.row_file import bytes_up_to
from depthbench.train import loop
from depthbench.train.execution import Execution, compile_model
from depthbench.train.loop import Training
from helpers import DESIGNS
from train.runs import IDENTITY, RECIPE, SHAPE, assert_same_run, layer_rows, stop_after, training

EVERY_FIVE = Execution(layer_statistics=5)
NAMES = ("mean", "variance", "norm")


def outputs_of(model, tokens):
    """Every block's output by its definition, from a pass that autograd alone differentiates (no tape in evaluation mode)."""
    found = []
    model.eval()
    state = model.residual.open(model.embedding(tokens))
    rope = rope_table(tokens.shape[1], model.shape.head_dim, like=model.embedding.weight)
    for block in model.blocks:
        state = block(state, rope)
        key = model.residual.key
        if key == "attnres":
            output = state[-1].value
        elif key == "attnres_block":
            output = (state.running or state.sealed[-1]).value
        elif key == "moda":
            output = state.x
        else:
            output = state
        found.append(output)
    return found, model.head(model.norm(model.residual.close(state)))


def described(x):
    return {
        "mean": x.mean().item(),
        "variance": x.var(correction=0).item(),
        "norm": x.flatten(2).square().sum(-1).sqrt().mean().item(),
    }


def assert_described(row, outputs, gradients, rel):
    for block, (output, gradient) in zip(row["blocks"], zip(outputs, gradients, strict=True), strict=True):
        wanted = described(output) | {f"gradient_{name}": value for name, value in described(gradient).items()}
        assert list(block) == list(wanted)
        for name, value in wanted.items():
            tiny = 1e-3 * rel * block[("gradient_" if "gradient" in name else "") + "norm"]
            assert block[name] == pytest.approx(value, rel=rel, abs=tiny), name


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("micro_batch_size", [0, 4])
def test_the_first_row_is_that_of_plain_code(token_data, tmp_path, design, micro_batch_size):
    execution = Execution(layer_statistics=5, micro_batch_size=micro_batch_size)
    training(tmp_path, token_data, design, execution=execution, dtype=torch.float64).run()
    inputs, targets = map(torch.from_numpy, training_batch(token_data, context=16, batch_size=RECIPE.batch_size, seed=3, step=0))
    outputs, logits = outputs_of(build_model(design, SHAPE, seed=3).double(), inputs)
    gradients = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), targets.flatten()), outputs)
    first, *others = layer_rows(tmp_path)
    assert [first["step"], *(row["step"] for row in others)] == [1, 5, 10]
    assert_described(first, outputs, gradients, 1e-9)


@pytest.mark.parametrize("design", DESIGNS)
def test_watching_changes_nothing(token_data, tmp_path, design):
    recipe = replace(RECIPE, precision="bf16", validation_every=5)
    training(tmp_path / "plain", token_data, design, recipe=recipe).run()
    training(tmp_path / "watched", token_data, design, recipe=recipe, execution=EVERY_FIVE).run()
    assert_same_run(tmp_path / "watched", tmp_path / "plain")
    assert not (tmp_path / "plain" / LAYERS_FILE).exists()
    assert all(value is not None for row in layer_rows(tmp_path / "watched") for block in row["blocks"] for value in block.values())


@pytest.mark.parametrize("updates", [1, 4, 7, 10])
def test_an_interrupted_run_has_every_row_once(token_data, tmp_path, updates):
    execution = Execution(layer_statistics=2, checkpoint_steps=3, checkpoint_seconds=0)
    training(tmp_path / "whole", token_data, "hc", execution=execution).run()
    parts = tmp_path / "parts"

    class Killed(Exception):
        pass

    def killed_at(report):
        if report.step == updates:
            raise Killed

    with pytest.raises(Killed):
        training(parts, token_data, "hc", execution=execution, report=killed_at).run()
    with open(parts / LAYERS_FILE, "ab") as file:
        file.write(b'{"step": 4, "blo')  # torn
    training(parts, token_data, "hc", execution=execution).run()
    assert (parts / LAYERS_FILE).read_bytes() == (tmp_path / "whole" / LAYERS_FILE).read_bytes()


def test_a_run_may_be_watched_from_where_it_goes_on(token_data, tmp_path):
    training(tmp_path, token_data, should_stop=stop_after(6)).run()
    training(tmp_path, token_data, execution=EVERY_FIVE, should_stop=stop_after(5)).run()
    training(tmp_path, token_data).run()
    assert [row["step"] for row in layer_rows(tmp_path)] == [10]


def test_rows_up_to_a_step_are_whole_ones(tmp_path):
    path = tmp_path / LAYERS_FILE
    assert bytes_up_to(path, 9) == 0
    rows = [b'{"step": 1}\n', b'{"step": 5}\n', b'{"step": 10}\n', b'{"step": 15']
    path.write_bytes(b"".join(rows))
    assert [bytes_up_to(path, step) for step in (0, 1, 4, 5, 10, 99)] == [0, 12, 12, 24, 37, 37]
    path.write_bytes(rows[0] + b"[]\n" + rows[1])
    assert bytes_up_to(path, 99) == 12


def test_what_is_not_finite_is_null(token_data, tmp_path):
    recipe = replace(RECIPE, learning_rate=1e30, warmup_fraction=0)
    outcome = training(tmp_path, token_data, recipe=recipe, execution=Execution(layer_statistics=1)).run()
    assert outcome.status == "diverged"
    assert layer_rows(tmp_path)[-1]["step"] == outcome.step
    assert None in layer_rows(tmp_path)[-1]["blocks"][-1].values()


class Deaf(PreLN):
    """The close reads the embedding alone, so no block has a gradient."""

    def open(self, embedding):
        return embedding, embedding

    def link(self, i):
        link = super().link(i)
        read, write = link.read, link.write
        link.read = lambda state: read(state[0])
        link.write = lambda state, y: (write(state[0], y), state[1])
        link.forward = lambda state, sublayer: link.write(state, sublayer(link.read(state)))
        return link

    def close(self, state):
        return state[1]


def test_a_block_without_a_gradient_says_so(token_data, tmp_path):
    model = Transformer(SHAPE, Deaf(SHAPE))
    watch = Execution(layer_statistics=4)
    Training(model, RECIPE, token_data, seed=3, folder=tmp_path, identity=IDENTITY, execution=watch).run()
    for block in layer_rows(tmp_path)[0]["blocks"]:
        assert block["norm"] > 0
        assert [block[f"gradient_{name}"] for name in NAMES] == [None] * 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.*should not be instantiated")  # within dynamo
@pytest.mark.parametrize("design", ["preln", "attnres"])
def test_what_is_compiled_is_compiled_once_and_shows_the_same(token_data, tmp_path, design, monkeypatch):
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(loop, "compile_model", functools.partial(compile_model, backend=count))
    number = {}
    for name, every in (("plain", 0), ("watched", 2)):
        graphs.clear()
        torch._dynamo.reset()
        execution = Execution(compile=True, layer_statistics=every)
        training(tmp_path / name, token_data, design, execution=execution).run()
        number[name] = len(graphs)
    torch._dynamo.reset()
    assert number["watched"] == number["plain"] > 0
    assert_same_run(tmp_path / "watched", tmp_path / "plain")
    training(tmp_path / "eager", token_data, design, execution=Execution(layer_statistics=2)).run()
    for ours, theirs in zip(layer_rows(tmp_path / "watched"), layer_rows(tmp_path / "eager"), strict=True):
        for one, two in zip(ours["blocks"], theirs["blocks"], strict=True):
            assert one == pytest.approx(two, rel=1e-3, abs=1e-6)
