"""What all tests share: one thread a test, since the models are tiny and tests run side by side, and a small prepared corpus."""

import random
from pathlib import Path

import pytest
import torch

from depthbench.data import TokenData, prepare

torch.set_num_threads(1)

WORDS = [
    "the",
    "a",
    "layer",
    "depth",
    "width",
    "residual",
    "stream",
    "norm",
    "attends",
    "to",
    "mixes",
    "adds",
    "reads",
    "writes",
    "and",
    "of",
    "with",
    "more",
    "less",
]


@pytest.fixture(scope="session")
def tokens_folder(tmp_path_factory) -> Path:
    """A small corpus of made-up sentences, prepared once: about 120 kB in 60 documents, a fifth of them for validation."""
    text, out = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("tokens") / "bytes"
    draw = random.Random(0)
    for number in range(60):
        sentence = " ".join(draw.choice(WORDS) for _ in range(400))
        (text / f"{number:02}.txt").write_text(f"{number} {sentence}.\n", encoding="utf-8")
    prepare([str(text)], out, validation_fraction=0.2, quiet=True)
    return out


@pytest.fixture(scope="session")
def token_data(tokens_folder) -> TokenData:
    return TokenData.open(tokens_folder)
