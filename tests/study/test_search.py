"""The learning-rate search: a pure function of the results so far, the same cells for search and comparison, and fewer than all."""

import math
import random
from dataclasses import replace

import pytest

from depthbench import Budget, UserError
from depthbench.study.cell import DataPin
from depthbench.study.search import StudyWork
from depthbench.study.study import Study
from depthbench.suites import Tier
from depthbench.train.recipe import Recipe

PIN = DataPin("made-up", "bytes", "f" * 64, "a" * 64)
STUDY = Study(
    name="searched",
    designs=("preln", "hc"),
    learning_rates=(1e-3, 2e-3, 4e-3),
    lr_policy="per_cell",
    recipe=Recipe(10, 4, 4e-3),
    budget=Budget(12e3, match="backbone", n_heads=2, vocab_size=257, context=32),
    n_layers=(1, 3),
    seeds=(0, 1),
)


def bowl(optimum, diverges_above=math.inf):
    """A loss that is a parabola in log learning rate, with a little noise of the seed."""
    return lambda cell: (
        None
        if cell.recipe.learning_rate > diverges_above
        else 2 + math.log(cell.recipe.learning_rate / optimum) ** 2 + 0.001 * cell.seed
    )


def finish(study, loss, order=None):
    """Give every cell that is asked for its loss, in a random order if `order` is a seed. Returns the work at its end."""
    work = StudyWork(study, PIN)
    draw = random.Random(order)
    while waiting := [cell for cell in work.wanted() if cell.identity not in work.losses]:
        cell = draw.choice(waiting) if order is not None else waiting[0]
        work.record(cell, loss(cell))
    return work


def rates(work, design, n_layers, seed=0):
    return sorted(
        c.recipe.learning_rate for c in work.wanted() if (str(c.design), c.shape.n_layers, c.seed) == (design, n_layers, seed)
    )


def test_an_optimum_inside_the_grid_needs_no_widening():
    work = finish(STUDY, bowl(2.2e-3))
    assert len(work.wanted()) == 2 * 2 * (3 + 1) < 2 * 2 * 3 * 2
    for state in work.searches():
        assert state.settled and (state.choice.chosen, state.choice.edge) == (2e-3, "")
        assert state.choice.refined == pytest.approx(2.2e-3, rel=1e-6)
    assert rates(work, "hc", 3, seed=1) == [2e-3]


@pytest.mark.parametrize(("optimum", "chosen", "grid"), [(9e-3, 8e-3, 5), (0.4e-3, 0.5e-3, 5), (17e-3, 16e-3, 6)])
def test_the_grid_is_widened_until_the_best_lies_inside(optimum, chosen, grid):
    for state in finish(STUDY, bowl(optimum)).searches():
        assert (state.choice.chosen, state.choice.edge, len(state.grid)) == (chosen, "", grid)


def test_widening_has_a_limit_and_the_edge_is_named():
    work = finish(replace(STUDY, widen=1), bowl(1.0))
    assert all((s.settled, s.choice.edge, s.choice.chosen, len(s.grid)) == (True, "high", 8e-3, 4) for s in work.searches())
    assert len(work.wanted()) == sum(work.cell_counts(row, column)[1] for row in (0, 1) for column in (0, 1))


def test_divergence_ends_the_widening_and_if_all_diverge_lower_rates_are_tried():
    assert {state.choice.chosen for state in finish(STUDY, bowl(1.0, diverges_above=5e-3)).searches()} == {4e-3}
    work = finish(STUDY, bowl(1e-4, diverges_above=3e-4))
    assert {state.choice.chosen for state in work.searches()} == {1.25e-4}
    none = finish(STUDY, lambda cell: None)
    assert all(state.settled and state.choice.chosen is None for state in none.searches())
    assert {cell.seed for cell in none.wanted()} == {0}  # nothing to compare, so no further seeds


def test_a_rate_that_diverges_with_another_seed_is_given_up():
    def loss(cell):
        return None if cell.seed == 1 and cell.recipe.learning_rate == 2e-3 else bowl(2.2e-3)(cell)

    work = finish(STUDY, loss)
    assert {state.choice.chosen for state in work.searches()} == {4e-3}
    assert rates(work, "preln", 1, seed=1) == [2e-3, 4e-3]


def test_per_design_searches_at_the_middle_shape_alone():
    study = replace(STUDY, lr_policy="per_design", n_layers=(1, 2, 3))
    work = finish(study, bowl(9e-3))
    assert rates(work, "preln", 2) == [1e-3, 2e-3, 4e-3, 8e-3, 16e-3] and rates(work, "preln", 3) == rates(work, "hc", 1) == [8e-3]
    assert len(work.wanted()) == 2 * (5 + 1 + 2 * 2)
    assert rates(finish(replace(study, base_n_layers=3), bowl(9e-3)), "preln", 2) == [8e-3]


def test_the_order_of_results_does_not_matter_and_an_interrupted_search_asks_for_the_same():
    """A second process that knows only some of the results asks for cells that the first one asked for, or has finished."""
    whole = finish(STUDY, bowl(9e-3))
    for seed in range(5):
        shuffled = finish(STUDY, bowl(9e-3), order=seed)
        assert [c.identity for c in shuffled.wanted()] == [c.identity for c in whole.wanted()]
    known = random.Random(3).sample(whole.wanted(), 9)
    again = StudyWork(STUDY, PIN)
    for cell in known:
        again.record(cell, bowl(9e-3)(cell))
    assert {c.identity for c in again.wanted()} <= {c.identity for c in whole.wanted()}


def test_every_tier_has_its_own_search_and_its_own_updates():
    budget = STUDY.budget
    tiers = (Tier("small", budget, (1, 3), 5), Tier("large", replace(budget, count=30e3), (1, 3), 8))
    study = replace(STUDY, budget=None, n_layers=(), tiers=tiers, lr_policy="per_design")
    work = finish(study, lambda cell: bowl(1.5e-3 if cell.recipe.steps == 5 else 6e-3)(cell))
    assert [state.choice.chosen for state in work.searches()] == [2e-3, 4e-3] * 2 or [s.choice.chosen for s in work.searches()]
    assert {cell.recipe.steps for cell in work.wanted()} == {5, 8}


def test_fixed_is_the_full_rectangle_whatever_comes_out():
    work = finish(replace(STUDY, lr_policy="fixed"), bowl(1.0))
    assert len(work.wanted()) == 2 * 2 * 3 * 2 and work.searches() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rates": (1e-3,)}, "at least 2 learning_rates"),
        ({"learning_rates": (2e-3, 1e-3)}, "must increase"),
        ({"lr_policy": "best"}, "lr_policy must be 'fixed' or 'per_design' or 'per_cell'"),
        ({"match": "flops"}, "match must be"),
        ({"widen": -1}, "widen must be at least 0"),
        ({"tiers": (Tier("a", STUDY.budget, (1,)),)}, "either shapes"),
        ({"n_layers": (), "tiers": (Tier("a", STUDY.budget, (1,)),)}, "tiers and shapes bring their own"),
        ({"seeds": 3}, "must be a tuple"),
        ({"seeds": (0.5,)}, "whole numbers"),
    ],
)
def test_contradictions_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        replace(STUDY, **change)


def test_a_budget_that_a_shape_cannot_meet_is_refused():
    coarse = replace(STUDY, budget=replace(STUDY.budget, count=30e3, n_heads=16), n_layers=(1,))
    with pytest.raises(UserError, match="cannot meet the budget: the nearest width"):
        coarse.solved_shapes()
