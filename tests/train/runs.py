"""Small training runs, and ways to look at what they left without the code under test."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from depthbench import ModelShape, build_model
from depthbench.train.loop import Training
from depthbench.train.recipe import Recipe

SHAPE = ModelShape(2, 16, 4, n_kv_heads=2, d_ff=24, vocab_size=257, context=16)
RECIPE = Recipe(steps=12, batch_size=6, learning_rate=4e-3, validation_windows=8)
IDENTITY = "1d" * 32


def training(folder, data, design="preln", *, shape=SHAPE, recipe=RECIPE, dtype=torch.float32, **rest) -> Training:
    """A run of one small model in `folder`."""
    folder.mkdir(exist_ok=True)
    model = build_model(design, shape, seed=3).to(dtype)
    return Training(model, recipe, data, **{"seed": 3, "folder": folder, "identity": IDENTITY} | rest)


def stop_after(updates):
    """A `should_stop` that says yes after so many updates of this attempt: it is asked after each."""
    asked = iter(range(1, updates + 1))
    return lambda: next(asked) == updates


def rows(folder: Path) -> list[dict]:
    """The metrics rows without their speed, the one thing in them that is a measurement."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "tokens_per_second"} for row in found]


def layer_rows(folder: Path) -> list[dict]:
    """The rows of layer statistics."""
    return [json.loads(line) for line in (folder / "layers.jsonl").read_text().splitlines()]


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((folder / "checkpoint").glob("*.safetensors"))


def assert_same_run(folder: Path, other: Path) -> None:
    """Two runs agree bit for bit: every row, and every tensor of the last checkpoint."""
    assert rows(folder) == rows(other)
    assert newest(folder).name == newest(other).name
    ours, theirs = load_file(newest(folder)), load_file(newest(other))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
