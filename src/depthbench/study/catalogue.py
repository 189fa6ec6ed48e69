"""The studies that come with DepthBench. A study is a function, so that making one costs nothing until it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from depthbench.errors import UserError, unknown
from depthbench.shape import Budget
from depthbench.study.study import Study, study_from_file
from depthbench.suites import LADDER, SUITES, Tier
from depthbench.train.recipe import Recipe

ALL_DESIGNS = ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres", "attnres_block", "moda")
PUBLISHED_RATES = (5e-4, 1e-3, 2e-3, 5e-3)
PUBLISHED_RECIPE = Recipe(steps=7_600, batch_size=512, learning_rate=2e-3, precision="bf16", validation_every=500)
FINEWEB = "fineweb-edu"
NEEDS_FINEWEB = (
    "token files of FineWeb-Edu (sample/100BT, validation shard 013_00008) made with the GPT-NeoX/Dolma v1.5 tokenizer, 50,280"
    " entries: depthbench data prepare TEXTS --tokenizer path/to/tokenizer.json --out FOLDER, then --data FOLDER"
)


def quick() -> Study:
    """Three designs at three depths on the standard library's text: minutes on a laptop."""
    return Study(
        name="quick",
        designs=("preln", "hc", "attnres"),
        budget=Budget(345e3, match="backbone", n_heads=2, vocab_size=257, context=128),
        n_layers=(2, 6, 14),
        learning_rates=(6e-3,),
        recipe=Recipe(steps=240, batch_size=8, learning_rate=6e-3, validation_windows=512),
        summary="Pre-LN, HC and Full AttnRes from shallow-wide to deep-narrow at about 0.35M backbone parameters; minutes",
    )


def tiny() -> Study:
    """All ten designs at five depths, each at its best learning rate, two seeds: a night on two cores."""
    return Study(
        name="tiny",
        designs=ALL_DESIGNS,
        budget=Budget(380e3, match="backbone", n_heads=2, vocab_size=257, context=128, d_ff_multiple=8),
        n_layers=(2, 5, 10, 16, 24),
        learning_rates=(2e-3, 5e-3, 1e-2),
        lr_policy="per_cell",
        seeds=(0, 1),
        recipe=Recipe(steps=600, batch_size=8, learning_rate=5e-3, validation_windows=512),
        summary="the ten designs from 2 to 24 layers at about 0.38M backbone parameters, byte tokens; a night on two cores",
    )


def small() -> Study:
    """All ten designs at five depths of 30M parameters on a vocabulary of 8,192: days on one GPU."""
    return Study(
        name="small",
        designs=ALL_DESIGNS,
        budget=Budget(30e6, n_heads=4, vocab_size=8192, context=1024),
        n_layers=(6, 10, 16, 24, 40),
        learning_rates=(1e-3, 2e-3, 5e-3),
        lr_policy="per_cell",
        seeds=(0, 1),
        recipe=Recipe(steps=3_000, batch_size=64, learning_rate=2e-3, precision="bf16", validation_every=500),
        tokenizer="bpe-8192",
        tokens_per_parameter=20.0,
        data=FINEWEB,
        needs=(
            "token files made with a BPE of 8,192 entries from 600 million tokens of text or more:"
            " depthbench data prepare TEXTS --tokenizer bpe-8192 --out FOLDER, then --data FOLDER"
        ),
        summary="the ten designs from 6 to 40 layers at 30M parameters, BPE of 8,192; one GPU",
    )


def _published(name: str, summary: str, *tiers: Tier) -> Study:
    """A published suite: all designs, its shapes and updates, the published grid at every design and shape."""
    return Study(
        name=name,
        designs=ALL_DESIGNS,
        tiers=tiers,
        learning_rates=PUBLISHED_RATES,
        lr_policy="per_cell",
        recipe=PUBLISHED_RECIPE,
        data=FINEWEB,
        tokenizer="gpt-neox-dolma",
        needs=NEEDS_FINEWEB,
        summary=summary,
    )


CATALOGUE: dict[str, Callable[[], Study]] = {
    "quick": quick,
    "tiny": tiny,
    "small": small,
    "400m": lambda: _published("400m", "the published 400M suite: total 405M, 16 to 70 layers", SUITES["400m"]),
    "backbone-300m": lambda: _published(
        "backbone-300m", "the published suite at a backbone of 302M, 16 to 84 layers", SUITES["backbone-300m"]
    ),
    "ladder": lambda: _published(
        "ladder", "the published ladder: 200M to 500M at three aspect ratios each", *(SUITES[name] for name in LADDER)
    ),
    "1.6b": lambda: _published("1.6b", "the published 1.6B suite: 28, 40 and 54 layers, 8 key-value heads", SUITES["1.6b"]),
}


def find_study(name: str) -> Study:
    """The study called `name`, from the catalogue or from `my_study.py:study`."""
    if name in CATALOGUE:
        return CATALOGUE[name]()
    if ":" in name:
        return study_from_file(name)
    if name.endswith(".py"):
        raise UserError(f"{name} is a file; name the study in it as well: {name}:study")
    raise unknown("study", name, CATALOGUE)
