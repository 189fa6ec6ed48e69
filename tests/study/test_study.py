"""Studies: expansion into cells, overrides, and studies from a user's file."""

from dataclasses import replace

import pytest

from depthbench import Budget
from depthbench.errors import UserError
from depthbench.study.catalogue import CATALOGUE, find_study
from depthbench.study.cell import DataPin
from depthbench.study.override import Overrides, override
from depthbench.study.plan import plan_rows, total_flops
from depthbench.study.study import Study
from depthbench.train.recipe import Recipe

PIN = DataPin("stdlib", "bytes", "f" * 64, "v" * 64)
STUDY = Study(
    name="s",
    designs=("preln", "hc[streams=2]"),
    learning_rates=(1e-3, 2e-3),
    recipe=Recipe(10, 4, 1e-3),
    budget=Budget(50e3, match="backbone", n_heads=2, vocab_size=257, context=32),
    n_layers=(1, 3),
    seeds=(0, 1),
)


def test_cells_are_the_product_and_share_everything_else():
    cells = STUDY.cells(PIN)
    assert len(cells) == len({cell.identity for cell in cells}) == 2 * 2 * 2 * 2
    assert {cell.recipe.steps for cell in cells} == {10}
    assert cells[-1].design.options == (("streams", 2),)


def test_two_studies_that_ask_for_the_same_cell_share_it():
    wider = replace(STUDY, name="other", seeds=(1, 2))
    assert {c.name for c in STUDY.cells(PIN)} & {c.name for c in wider.cells(PIN)}


def test_tokens_per_parameter_count_the_budget_once_for_the_study():
    total = replace(STUDY, budget=Budget(100e3, n_heads=2, vocab_size=257, context=32), tokens_per_parameter=20)
    assert total.steps() == round(20 * 100e3 / (4 * 32))
    backbone = replace(STUDY, tokens_per_parameter=20)
    mean = sum(shape.total_parameters for shape in backbone.solved_shapes()) / 2
    assert backbone.steps() == round(20 * mean / (4 * 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"designs": ()}, "designs is empty"),
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": (1, 1)}, "seeds repeat"),
        ({"seeds": (-1,)}, "at least 0"),
        ({"learning_rates": (1e-3, 0.0)}, "learning_rate must be above 0"),
        ({"learning_rates": (float("nan"),)}, "finite"),
        ({"budget": None}, "need a budget"),
        ({"n_layers": ()}, "either shapes, or a budget"),
    ],
)
def test_studies_that_make_no_sense_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        replace(STUDY, **change)


def test_designs_are_checked_before_anything_runs():
    with pytest.raises(UserError, match="did you mean 'preln'"):
        replace(STUDY, designs=("prelnn",)).cells(PIN)
    with pytest.raises(UserError, match="did you mean 'streams'"):
        replace(STUDY, designs=("hc[stream=2]",)).cells(PIN)


def test_overrides():
    changed = override(
        STUDY, Overrides(designs=("lns",), n_layers=(2,), seeds=(7,), batch_size=8, context=16, learning_rates=(3e-3,))
    )
    (cell,) = changed.cells(PIN)
    assert (str(cell.design), cell.shape.n_layers, cell.shape.context, cell.seed) == ("lns", 2, 16, 7)
    assert (cell.recipe.batch_size, cell.recipe.learning_rate) == (8, 3e-3)
    assert override(replace(STUDY, tokens_per_parameter=20), Overrides(steps=5)).steps() == 5
    assert override(STUDY, Overrides()) is STUDY


def test_contradicting_overrides_are_refused():
    with pytest.raises(UserError, match="give one"):
        override(STUDY, Overrides(steps=5, tokens_per_parameter=20))
    listed = replace(STUDY, budget=None, n_layers=(), shapes=tuple(STUDY.solved_shapes()))
    with pytest.raises(UserError, match="lists its shapes"):
        override(listed, Overrides(n_layers=(2,)))


def test_plan_counts_what_will_be_trained():
    rows = plan_rows(STUDY.cells(PIN))
    assert [(row.design, row.n_layers, row.cells) for row in rows][:2] == [("preln", 1, 4), ("preln", 3, 4)]
    assert rows[2].design_parameters > 0 and rows[2].total_parameters == rows[0].total_parameters + rows[2].design_parameters
    plain = rows[0]
    matrices = plain.backbone_parameters - 2 * plain.d_model + 257 * plain.d_model
    assert plain.flops == pytest.approx(3 * plain.tokens * (2 * matrices + 2 * 32 * plain.d_model))
    assert total_flops(rows) == pytest.approx(sum(row.flops * 4 for row in rows))


def test_the_catalogue_solves_and_stays_near_its_budgets():
    for make in CATALOGUE.values():
        study = make()
        shapes = study.solved_shapes()
        assert len(shapes) >= 3 and shapes[0].aspect_ratio > 4 * shapes[-1].aspect_ratio
        assert all(abs(study.budget.miss(shape)) <= study.budget.tolerance for shape in shapes)
        assert study.choices()


def test_unknown_study_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'quick'"):
        find_study("qick")


GOOD = """
from depthbench.study.study import Study
from depthbench.study.catalogue import quick
from dataclasses import replace
def study(): return replace(quick(), name="mine", seeds=(5,))
ready = study()
def fails(): raise ValueError("no such luck")
def takes(n): return None
def wrong(): return 3
"""


@pytest.mark.parametrize("name", ["study", "ready"])
def test_a_study_from_a_file(tmp_path, name):
    (tmp_path / "my_study.py").write_text(GOOD)
    assert find_study(f"{tmp_path}/my_study.py:{name}").seeds == (5,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "raised ValueError: no such luck"),
        ("takes", "takes arguments"),
        ("wrong", "gave int, and must give"),
        ("absent", "has no 'absent'"),
    ],
)
def test_a_study_file_that_gives_none_is_one_clear_error(tmp_path, name, message):
    (tmp_path / "my_study.py").write_text(GOOD)
    with pytest.raises(UserError, match=message):
        find_study(f"{tmp_path}/my_study.py:{name}")


def test_a_missing_study_file():
    with pytest.raises(UserError, match="not a Python file that exists"):
        find_study("nowhere/my_study.py:study")
