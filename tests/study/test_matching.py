"""match="total": every design with Pre-LN's number of parameters, as built."""

from dataclasses import replace

import pytest

from depthbench import Budget, ModelShape, UserError, build_model
from depthbench.study.catalogue import find_study
from depthbench.study.cell import DataPin, DesignChoice
from depthbench.study.matching import TOLERANCE, matched_shape, off_total
from depthbench.study.plan import plan_rows, refuse_unmatched
from depthbench.study.search import StudyWork
from helpers import DESIGNS

SHAPE = Budget(380e3, match="backbone", n_heads=2, vocab_size=257, context=128, d_ff_multiple=8).solve(10)
PIN = DataPin("made-up", "bytes", "f" * 64, "a" * 64)


def built_total(choice, shape):
    return sum(p.numel() for p in build_model(choice.name, shape, **dict(choice.options)).parameters())


@pytest.mark.parametrize("design", DESIGNS)
def test_the_built_model_has_prelns_total(design):
    choice = DesignChoice(design)
    narrowed = matched_shape(choice, SHAPE)
    target = built_total(DesignChoice("preln"), SHAPE)
    assert abs(built_total(choice, narrowed) / target - 1) <= TOLERANCE
    assert off_total(choice, narrowed, SHAPE) == built_total(choice, narrowed) / target - 1
    assert replace(narrowed, d_ff=SHAPE.d_ff) == SHAPE and narrowed.d_ff <= SHAPE.d_ff
    nearest = min(range(1, SHAPE.d_ff + 1), key=lambda d: (abs(off_total(choice, replace(SHAPE, d_ff=d), SHAPE)), d))
    assert narrowed.d_ff == nearest


def test_preln_is_left_as_it_is_and_moda_is_not():
    assert matched_shape(DesignChoice("preln"), SHAPE) == SHAPE
    assert matched_shape(DesignChoice("moda"), SHAPE).d_ff < SHAPE.d_ff - 15


def test_a_study_trains_the_narrowed_shapes_and_shares_prelns_cells():
    study = replace(find_study("tiny"), designs=("preln", "moda"), n_layers=(5, 10))
    matched = replace(study, match="total")
    plain, narrowed = study.cells(PIN), matched.cells(PIN)
    assert {c.name for c in plain if c.design.name == "preln"} == {c.name for c in narrowed if c.design.name == "preln"}
    rows = plan_rows(StudyWork(matched, PIN))
    assert all(row.matched and abs(row.off_total) <= TOLERANCE for row in rows)
    assert {row.off_total for row in plan_rows(StudyWork(study, PIN)) if row.design == "preln"} == {0.0}
    assert {c.shape.d_ff for c in narrowed if c.design.name == "moda"} == {row.d_ff for row in rows if row.design == "moda"}


def test_what_cannot_be_matched_is_said_and_refused():
    heavy = ModelShape(n_layers=4, d_model=8, n_heads=2, d_ff=1, vocab_size=11, context=16)
    study = replace(find_study("quick"), designs=("preln", "moda"), budget=None, n_layers=(), shapes=(heavy,), match="total")
    work = StudyWork(study, PIN)
    assert [row.matched for row in plan_rows(work)] == [True, False]
    with pytest.raises(UserError, match=r"moda at 4 × 8 stays \+.*% from Pre-LN's total whatever its d_ff"):
        refuse_unmatched(work)
