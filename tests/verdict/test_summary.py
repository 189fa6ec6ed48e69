import math
from dataclasses import replace

import pytest

from depthbench.verdict.summary import aggregate
from depthbench.verdict.tables import tables
from synthetic import SHAPES, diverged, row, seeds, study


def summarise(rows):
    (table,) = tables(rows, "here")
    return aggregate(table.rows)


def only_cell(rows):
    (cell,) = summarise(rows).cells
    return cell


def trends(rows):
    return {trend.label: trend for trend in summarise(rows).trends}


def test_mean_and_sample_standard_deviation_over_seeds():
    cell = only_cell([row(loss=1.0), row(loss=1.2, seed=1), row(loss=1.4, seed=2)])
    assert cell.loss == pytest.approx(1.2) and cell.loss_sd == pytest.approx(0.2) and cell.seeds == (0, 1, 2)
    assert cell.bits_per_byte == pytest.approx(1.2 / math.log(2))


def test_one_seed_has_no_spread():
    assert only_cell([row(loss=1.0)]).loss_sd is None


def test_the_learning_rate_with_the_lowest_mean_is_taken_not_the_luckiest_run():
    low = [row(loss=1.0, learning_rate=0.002), row(loss=1.6, learning_rate=0.002, seed=1)]
    cell = only_cell([*low, row(loss=1.2, learning_rate=0.004), row(loss=1.2, learning_rate=0.004, seed=1)])
    assert cell.learning_rate == 0.004 and cell.loss == pytest.approx(1.2) and cell.learning_rates == (0.002, 0.004)


def test_a_learning_rate_with_a_diverged_seed_is_worse_than_any():
    rows = [row(loss=0.5, learning_rate=0.01), diverged(learning_rate=0.01, seed=1), row(loss=3.0, learning_rate=0.002)]
    cell = only_cell(rows)
    assert (cell.learning_rate, cell.loss, cell.diverged_steps, cell.n_runs) == (0.002, 3.0, (120,), 3)


def test_a_cell_that_diverged_everywhere_has_no_numbers():
    cell = only_cell([row(learning_rate=0.01), diverged(learning_rate=0.01, seed=1, step=90), diverged(learning_rate=0.002)])
    assert (cell.loss, cell.learning_rate, cell.seeds, cell.tokens_per_second) == (None, None, (), None)
    assert cell.diverged_steps == (90, 120)


def test_slope_and_gain_of_a_known_line():
    line = {"preln": [2.0 - 0.03 * math.log2(n_layers) for n_layers, _ in SHAPES]}
    trend = trends(study(line))["preln"]
    assert trend.slope == pytest.approx(-0.03) and trend.gain == pytest.approx(0.03 * 3)
    assert trend.best.shape.n_layers == 16


def test_trend_of_means_over_seeds():
    assert trends(seeds(study()))["hc"].slope == pytest.approx(trends(study())["hc"].slope)


def test_trends_use_the_shapes_finished_by_all():
    rows = [r for r in study() if (r.design, r.n_layers) != ("hc", 16)]
    summary = summarise(rows)
    assert [shape.n_layers for shape in summary.compared] == [2, 6]
    gain = {trend.label: trend.gain for trend in summary.trends}
    assert gain["preln"] == pytest.approx(1.500 - 1.432) and gain["hc"] == pytest.approx(1.421 - 1.358)


def test_a_design_that_diverges_where_others_finish_does_not_shrink_their_comparison():
    rows = [r for r in study() if (r.design, r.n_layers) != ("hc", 16)]
    summary = summarise([*rows, diverged("hc", (16, 56))])
    assert [shape.n_layers for shape in summary.compared] == [2, 6, 16]
    assert {trend.label: trend.gain is None for trend in summary.trends} == {"preln": False, "hc": True, "attnres": False}


def test_a_shape_at_which_all_diverge_is_not_compared():
    rows = [r for r in study() if r.n_layers != 16]
    summary = summarise([*rows, *(diverged(design, (16, 56)) for design in ("preln", "hc", "attnres"))])
    assert [shape.n_layers for shape in summary.compared] == [2, 6]


def test_a_design_that_has_only_begun_does_not_take_the_trend_from_the_others():
    found = trends([*study(), row("moda", (2, 160))])
    assert found["preln"].slope is not None and found["moda"].slope is None and found["moda"].gain is None


def test_no_trend_from_one_depth_or_from_disjoint_depths():
    assert trends([row(), row("hc")])["hc"].slope is None
    disjoint = [row("preln", (2, 160)), row("preln", (4, 112)), row("hc", (6, 96)), row("hc", (16, 56))]
    assert {trend.slope for trend in trends(disjoint).values()} == {None}


def test_best_shape_is_over_all_shapes_of_the_design():
    rows = [*study(), row("hc", (24, 48), 1.0)]
    found = trends(rows)
    assert found["hc"].best.shape.n_layers == 24 and found["preln"].best.shape.n_layers == 6


def test_own_parameters_are_relative_to_the_rest_of_the_model():
    (trend,) = summarise([row(design_parameters=3_000, total_parameters=303_000)]).trends
    assert trend.own_share == pytest.approx((0.01, 0.01))


def test_shapes_of_other_feed_forward_width_are_not_averaged():
    assert len(summarise([row(loss=1.0), row(loss=2.0, d_ff=512, run="wide")]).cells) == 2


def test_narrowed_designs_share_a_column_that_says_its_widths():
    summary = summarise([row(), row("moda", d_ff=380)])
    assert len(summary.shapes) == 1 and summary.d_ff_span(summary.shapes[0]) == (380, 432)
    assert [cell.d_ff for cell in summary.cells] == [432, 380]


def test_losses_of_the_seeds_are_those_at_the_chosen_rate():
    rows = [row(loss=1.5 + 0.01 * seed, seed=seed, learning_rate=0.004) for seed in (2, 0, 1)]
    cell = only_cell([*rows, row(loss=1.9, learning_rate=0.002), row(loss=1.8, learning_rate=0.008)])
    assert cell.seeds == (0, 1, 2) and cell.seed_losses == (1.5, 1.51, 1.52)
    assert [(tried.rate, tried.loss) for tried in cell.choice.tried] == [(0.002, 1.9), (0.004, 1.5), (0.008, 1.8)]
    assert cell.choice.edge == "" and 0.004 < cell.choice.refined < 0.008


def test_steps_and_tokens_are_the_recipes_not_those_of_a_run_that_stopped_early():
    stopped = diverged(learning_rate=0.01, step=7, steps=7, tokens=7_000)
    assert (cell := only_cell([stopped, row()])).steps == 400 and cell.tokens == 819_200


def test_bits_per_byte_is_missing_unless_every_seed_has_it():
    assert only_cell([row(), replace(row(seed=1), bits_per_byte=None)]).bits_per_byte is None
