"""The studies that come with DepthBench. A study is a function, so that making one costs nothing until it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from depthbench.errors import UserError, unknown
from depthbench.shape import Budget
from depthbench.study.study import Study, study_from_file
from depthbench.train.recipe import Recipe


def quick() -> Study:
    """Three designs at three depths on the standard library's text: minutes on a laptop."""
    return Study(
        name="quick",
        designs=("preln", "hc", "attnres"),
        budget=Budget(345e3, match="backbone", n_heads=2, vocab_size=257, context=128),
        n_layers=(2, 6, 14),
        learning_rates=(6e-3,),
        recipe=Recipe(steps=270, batch_size=8, learning_rate=6e-3, validation_windows=512),
        summary="Pre-LN, HC and Full AttnRes from shallow-wide to deep-narrow at about 0.35M backbone parameters",
    )


CATALOGUE: dict[str, Callable[[], Study]] = {"quick": quick}


def find_study(name: str) -> Study:
    """The study called `name`, from the catalogue or from `my_study.py:study`."""
    if name in CATALOGUE:
        return CATALOGUE[name]()
    if ":" in name:
        return study_from_file(name)
    if name.endswith(".py"):
        raise UserError(f"{name} is a file; name the study in it as well: {name}:study")
    raise unknown("study", name, CATALOGUE)
