"""Cells: identity, names, and what is read back."""

from dataclasses import replace

import pytest

from depthbench import ModelShape
from depthbench.errors import UserError
from depthbench.study.cell import Cell, DataPin, DesignChoice, cell_from
from depthbench.train.recipe import Recipe

SHAPE = ModelShape(2, 16, 2, vocab_size=257, context=32)
CELL = Cell(
    DesignChoice("hc", (("streams", 2),)), "", SHAPE, Recipe(10, 4, 0.002), 0, DataPin("stdlib", "bytes", "f" * 64, "v" * 64)
)


def test_the_folder_name_is_readable_and_ends_in_a_hash():
    assert CELL.name == f"hc-streams-2-2x16-lr0.002-s0-{CELL.identity[:10]}"


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, seed=1),
        replace(CELL, design=DesignChoice("hc")),
        replace(CELL, shape=replace(SHAPE, d_ff=40)),
        replace(CELL, recipe=replace(CELL.recipe, weight_decay=0.0)),
        replace(CELL, data=replace(CELL.data, fingerprint="0" * 64)),
        replace(CELL, design_hash="edited"),
    ],
)
def test_anything_that_changes_the_result_changes_the_identity(other):
    assert other.identity != CELL.identity


def test_where_data_or_a_design_file_lies_is_no_part_of_the_identity():
    assert replace(CELL, data=replace(CELL.data, source="elsewhere")).identity == CELL.identity
    mine = replace(CELL, design=DesignChoice("a/mine.py:Mine"), design_hash="h")
    assert mine.identity == replace(mine, design=DesignChoice("/b/c/mine.py:Mine")).identity


def test_the_identity_is_pinned():
    """Changing it would orphan every run folder there is: bump the cell format instead."""
    assert CELL.identity == "f02e1d971852e6e28bbac7ab74d30a1391587d5274820d21a5a605135e1a70d9"


def test_content_round_trip():
    assert cell_from(CELL.content(), "here") == CELL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "newer DepthBench"),
        ({"format": None}, "no format number"),
        ({"recipe": {"stepz": 3}}, "did you mean 'steps'"),
        ({"shape": None}, "does not describe a cell"),
        ({"seed": ...}, "does not describe a cell"),
    ],
)
def test_unusable_content_is_one_clear_error(change, message):
    content = {**CELL.content(), **change}
    content = {key: value for key, value in content.items() if value is not ...}
    with pytest.raises(UserError, match=message):
        cell_from(content, "cell.json")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("hc", DesignChoice("hc")),
        ("hc[streams=2,dynamic=false]", DesignChoice("hc", (("dynamic", "false"), ("streams", "2")))),
        ("a b/mine.py:Mine[x=1]", DesignChoice("a b/mine.py:Mine", (("x", "1"),))),
    ],
)
def test_designs_are_read_from_text(text, choice):
    assert DesignChoice.parse(text) == choice


@pytest.mark.parametrize("text", ["", "hc[", "hc]2[", "hc[streams]", "hc[=2]", "hc[streams=2,streams=3]"])
def test_malformed_designs_are_refused(text):
    with pytest.raises(UserError):
        DesignChoice.parse(text)
