import json
import math
from dataclasses import asdict, replace

import pytest

from depthbench.errors import UserError
from depthbench.verdict.scaling import predict, scale_laws
from depthbench.verdict.tables import tables
from synthetic import losses, row

# (layers, width) from wide to deep and total parameters in millions, of the published ladder.
TIERS = (
    (((12, 896), (18, 768), (24, 672)), (206, 205, 198)),
    (((14, 1056), (21, 896), (28, 800)), (294, 293, 296)),
    (((16, 1216), (24, 1024), (32, 896)), (407, 405, 399)),
    (((17, 1344), (26, 1120), (34, 992)), (504, 504, 502)),
)


def loss_of(millions, n_layers, d_model, best=42.0):
    """E + A·N^-alpha, and a parabola in log aspect ratio around `best`."""
    return 2.0 + 0.8 * (millions / 300) ** -0.4 + 0.01 * math.log2(d_model / n_layers / best) ** 2


def ladder(n=3, tiers=TIERS, designs=("preln",), best=lambda millions: 42.0, sd=0.0005):
    return [
        row(
            design,
            shape,
            loss,
            seed=seed,
            steps=19 * sizes[0],
            recipe_hash=f"{i:064}",
            total_parameters=millions * 10**6,
            backbone_parameters=millions * 700_000,
            design_parameters=0,
        )
        for i, (shapes, sizes) in enumerate(tiers)
        for j, design in enumerate(designs)
        for (shape, millions), of_seeds in zip(
            zip(shapes, sizes, strict=True),
            losses([loss_of(sizes[1], *shape, best(sizes[1])) for shape in shapes], n, sd=sd, seed_sd=0, stream=9 * i + j),
            strict=True,
        )
        for seed, loss in enumerate(of_seeds)
    ]


def laws_of(rows):
    return scale_laws(tables(rows, "here"))


def test_four_tiers_give_a_law_with_a_floor_for_each_class_of_aspect_ratios():
    found = laws_of(ladder())
    assert [round(law.aspect_ratio) for law in found.laws] == [79, 43, 29] and found.parameters == "total"
    law = found.laws[1]
    assert law.form == "E + A·N^-alpha" and law.n == 3 and law.points[0].parameters == 205 * 10**6
    assert law.E.low <= 2.0 <= law.E.high and law.alpha.low <= 0.4 <= law.alpha.high
    assert law.rms < 0.002 and law.range == (102.5e6, 1008e6)
    assert "factor 1.2 of aspect ratio" in found.notes[0] and "half its smallest" in found.notes[1]
    json.dumps(asdict(found), allow_nan=False)


def test_a_law_that_the_tiers_do_not_determine_says_so():
    rows = [replace(r, loss=3.0 if r.total_parameters < 250e6 else 2.5) for r in ladder(n=1)]
    assert "alpha lies at the edge" in laws_of(rows).laws[0].notes[0]
    rows = [replace(r, loss=3.0 if r.total_parameters < 450e6 else 2.5) for r in ladder(n=1)]
    assert "E lies at its bound 0" in laws_of(rows).laws[0].notes[0]


def test_three_tiers_give_a_power_law_without_a_floor():
    law = laws_of(ladder(tiers=TIERS[:3])).laws[0]
    assert law.form == "A·N^-alpha" and law.E is None and law.range is not None
    assert law.alpha.value == pytest.approx(0.4 * 0.8 / 2.8, abs=0.02)


def test_two_tiers_predict_nothing():
    law = laws_of(ladder(tiers=TIERS[:2])).laws[0]
    assert law.range is None and law.rms is None
    with pytest.raises(UserError, match="rests on 2 tiers and predicts nothing; 3 are needed"):
        predict(law, 250e6)


def test_predictions_stay_between_half_the_smallest_and_twice_the_largest():
    law = laws_of(ladder()).laws[1]
    found = predict(law, 800e6)
    assert found.low < loss_of(800, 26, 1120) < found.high and found.value == pytest.approx(loss_of(800, 26, 1120), abs=0.02)
    assert predict(law, 102.5e6).value > found.value
    for outside in (100e6, 1.1e9):
        with pytest.raises(UserError, match=r"are outside 102M to 1.01B, half the smallest to twice the largest"):
            predict(law, outside)


def test_one_seed_has_a_law_without_intervals_and_it_is_said():
    found = laws_of(ladder(n=1))
    law = found.laws[0]
    assert (law.n, law.alpha.low, law.E.high) == (1, None, None) and law.rms is not None
    assert predict(law, 300e6).low is None
    assert any("One seed: no intervals" in note for note in found.notes)


def test_only_shared_seeds_are_fitted_and_missing_tiers_left_out():
    rows = [r for r in ladder(designs=("preln", "hc")) if (r.design, r.n_layers, r.seed) != ("hc", 24, 2) and r.n_layers != 34]
    found = {(law.label, round(law.aspect_ratio)): law for law in laws_of(rows).laws}
    assert found["preln", 28].form == "A·N^-alpha" and found["hc", 76].form == "E + A·N^-alpha"
    assert found["preln", 43].n == 3 and found["hc", 43].n == 2


def test_one_budget_is_no_ladder():
    assert laws_of(ladder(tiers=TIERS[:1])) is None


def test_tiers_on_different_data_are_not_fitted():
    small, large = ladder(tiers=TIERS[:1]), ladder(tiers=TIERS[1:2])
    found = laws_of([*small, *(replace(r, data_fingerprint="f" * 64) for r in large)])
    assert found.laws == () and "different data" in found.notes[0]


def test_two_recipes_at_one_budget_leave_it_open_which_tiers_belong_together():
    again = [replace(r, recipe_hash="e" * 64) for r in ladder(tiers=TIERS[:1])]
    found = laws_of([*ladder(), *again])
    assert found.laws == () and "several tables" in found.notes[0]


def test_the_best_aspect_ratio_of_every_tier_and_its_trend():
    moving = ladder(best=lambda millions: 42.0 * (millions / 300) ** 0.5, sd=0.0002)
    (move,) = laws_of(moving).moves
    assert [tier.edge for tier in move.tiers] == [""] * 4
    assert [tier.aspect_ratio for tier in move.tiers] == pytest.approx([34.7, 41.7, 48.7, 54.4], rel=0.05)
    assert move.trend.low < 0.5 < move.trend.high and move.trend.high - move.trend.low < 0.4
    (still,) = laws_of(ladder()).moves
    assert still.trend.low < 0 < still.trend.high and still.notes == ()


def test_a_best_on_an_edge_is_flagged():
    (move,) = laws_of(ladder(best=lambda millions: 500.0)).moves
    assert [tier.edge for tier in move.tiers] == ["wide"] * 4 and move.trend is None
    assert "edge" in move.notes[0]
    (mixed,) = laws_of(ladder(best=lambda millions: 42.0 if millions < 350 else 500.0)).moves
    assert [tier.edge for tier in mixed.tiers] == ["", "", "wide", "wide"] and mixed.trend.value > 0
    assert "steeper" in mixed.notes[1]


def test_too_few_shapes_do_not_determine_the_best():
    rows = [r for r in ladder() if r.n_layers not in (24, 28)]
    (move,) = laws_of(rows).moves
    assert [tier.edge for tier in move.tiers] == ["too few shapes"] * 3 + [""] and move.trend is None


def test_one_seed_gives_a_trend_without_interval():
    (move,) = laws_of(ladder(n=1)).moves
    assert move.trend.n == 1 and move.trend.low is None
