"""Studies: expansion into cells, overrides, and studies from a user's file."""

from dataclasses import replace

import pytest

from depthbench import Budget
from depthbench.errors import UserError
from depthbench.study.catalogue import CATALOGUE, find_study
from depthbench.study.cell import DataPin
from depthbench.study.override import Overrides, override
from depthbench.study.plan import plan_rows, total_flops
from depthbench.study.search import StudyWork
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
    assert total.sets()[0][1] == round(20 * 100e3 / (4 * 32))
    backbone = replace(STUDY, tokens_per_parameter=20)
    mean = sum(shape.total_parameters for shape in backbone.solved_shapes()) / 2
    assert backbone.sets()[0][1] == round(20 * mean / (4 * 32))


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
    assert override(replace(STUDY, tokens_per_parameter=20), Overrides(steps=5)).sets()[0][1] == 5
    assert override(STUDY, Overrides()) is STUDY


def test_contradicting_overrides_are_refused():
    with pytest.raises(UserError, match="give one"):
        override(STUDY, Overrides(steps=5, tokens_per_parameter=20))
    listed = replace(STUDY, budget=None, n_layers=(), shapes=tuple(STUDY.solved_shapes()))
    with pytest.raises(UserError, match="lists its shapes"):
        override(listed, Overrides(n_layers=(2,)))


def test_plan_counts_what_will_be_trained():
    rows = plan_rows(StudyWork(STUDY, PIN))
    assert [(row.design, row.n_layers, row.cells) for row in rows][:2] == [("preln", 1, 4), ("preln", 3, 4)]
    assert rows[2].design_parameters > 0 and rows[2].total_parameters == rows[0].total_parameters + rows[2].design_parameters
    plain = rows[0]
    matrices = plain.backbone_parameters - 2 * plain.d_model + 257 * plain.d_model
    assert plain.flops == pytest.approx(3 * plain.tokens * (2 * matrices + 2 * 32 * plain.d_model))
    assert total_flops(rows) == pytest.approx(sum(row.flops * 4 for row in rows))


def test_the_catalogue_solves_and_stays_near_its_budgets():
    for name, make in CATALOGUE.items():
        study = make()
        shapes = study.solved_shapes()
        assert study.name == name and len(shapes) >= 3 and study.choices()
        for tier in study.all_tiers():
            allowed = 0.03 if name in ("quick", "tiny", "small") else 0.04  # 24 × 672 of the ladder is off by 3.6 %, as published
            assert all(abs(tier.budget.miss(shape)) <= allowed for shape in tier.shapes)


def test_tiny_holds_all_designs_over_the_whole_range_of_depths():
    study = find_study("tiny")
    assert len(study.designs) == 10 and study.learning_rates == (2e-3, 5e-3, 1e-2) and len(study.seeds) == 2
    assert [shape.n_layers for shape in study.solved_shapes()] == [2, 5, 10, 16, 24]


def test_published_suites_have_the_published_shapes_updates_and_grid():
    rows = plan_rows(StudyWork(replace(find_study("400m"), designs=("preln",)), PIN))
    published = [
        (16, 1216, 3248),
        (20, 1120, 2992),
        (24, 1024, 2736),
        (28, 960, 2560),
        (32, 896, 2400),
        (42, 800, 2144),
        (70, 640, 1712),
    ]
    assert [(row.n_layers, row.d_model, row.d_ff) for row in rows] == published
    assert [round(row.backbone_parameters / 1e6) for row in rows] == pytest.approx([284, 301, 302, 310, 309, 324, 345], abs=1)
    assert [round(row.total_parameters / 1e6) for row in rows] == pytest.approx([407, 414, 405, 406, 399, 404, 409], abs=1)
    assert {row.steps for row in rows} == {7600} and {row.tokens for row in rows} == {7600 * 512 * 2048}
    ladder = find_study("ladder")
    assert [steps for _, steps in ladder.sets()] == [3800, 5700, 7600, 9500]
    assert ladder.learning_rates == (5e-4, 1e-3, 2e-3, 5e-3) and find_study("1.6b").sets()[0][1] == 30_400
    assert {shape.n_kv_heads for shape in find_study("1.6b").solved_shapes()} == {8}
    assert "FineWeb-Edu" in ladder.needs and "--data FOLDER" in ladder.needs


def test_overrides_of_a_search():
    study = override(find_study("quick"), Overrides(learning_rates=(1e-3, 2e-3), lr_policy="per_design", widen=1, match="total"))
    assert (study.lr_policy, study.widen, study.match) == ("per_design", 1, "total")
    with pytest.raises(UserError, match="--widen is for a search"):
        override(find_study("quick"), Overrides(widen=1))
    with pytest.raises(UserError, match="at least 2 learning_rates"):
        override(find_study("tiny"), Overrides(learning_rates=(1e-3,)))
    with pytest.raises(UserError, match="--n-layers cannot replace them all"):
        override(find_study("ladder"), Overrides(n_layers=(4,)))
    shorter = override(find_study("ladder"), Overrides(steps=7, context=64))
    assert {steps for _, steps in shorter.sets()} == {7} and {s.context for s in shorter.solved_shapes()} == {64}


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
