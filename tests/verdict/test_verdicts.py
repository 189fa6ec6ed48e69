import json
from dataclasses import asdict

import numpy as np
import pytest

from depthbench.verdict.summary import aggregate
from depthbench.verdict.verdicts import judge
from synthetic import diverged, line, row, simulated

THREE = {"preln": line(0.01), "hc": line(-0.02), "attnres": line(-0.021)}


def judged(rows, **options):
    return judge(aggregate(rows), **options)


def by_label(verdicts):
    return {design.label: design for design in verdicts.designs}


def test_verdicts_ranks_and_ties_of_known_designs():
    found = judged(simulated(THREE, n=5))
    assert [(design.label, design.verdict) for design in found.designs[-1:]] == [("preln", "worse with depth")]
    assert {design.label: design.rank for design in found.designs} == {"hc": (1, 2), "attnres": (1, 2), "preln": (3, 3)}
    assert found.designs[0].gain.value > found.designs[1].gain.value
    hc = by_label(found)["hc"]
    assert hc.verdict == "improves with depth" and hc.slope.low < -0.02 < hc.slope.high and hc.n == 5
    assert hc.sigma == pytest.approx(0.004, rel=0.5)
    assert hc.slope.bootstrap == pytest.approx((hc.slope.low, hc.slope.high), abs=0.001)
    assert [(pair.a, pair.b, pair.gain_differs) for pair in found.pairs] == [
        ("preln", "hc", True),
        ("preln", "attnres", True),
        ("hc", "attnres", False),
    ]


def test_everything_is_ready_for_json():
    text = json.dumps(asdict(judged([*simulated(THREE, n=2), diverged("moda", (24, 20))])), allow_nan=False)
    assert "diverges at M = 24" in text


def test_the_share_of_draws_says_how_sure_the_best_depth_is():
    bent = np.array(line(0)) - [0, 0, 0.03, 0.028, 0]
    shares = dict(by_label(judged(simulated({"preln": bent})))["preln"].best_depths)
    assert set(shares) == {8, 12} and sum(shares.values()) == pytest.approx(1)


def test_one_seed_gives_points_without_interval_verdict_or_rank():
    found = judged(simulated(THREE, n=1))
    assert [design.label for design in found.designs] == ["preln", "hc", "attnres"]
    for design in found.designs:
        assert (design.verdict, design.rank, design.sigma, design.gain.low, design.best_depths) == (None, None, None, None, ())
        assert "2 seeds" in design.reason
    assert {pair.gain_differs for pair in found.pairs} == {None}
    assert len(found.notes) == 1 and "2 seeds" in found.notes[0]


def test_a_design_with_one_seed_among_others_has_no_rank_and_it_is_said():
    found = judged([r for r in simulated(THREE) if r.design != "hc" or r.seed == 0])
    ranks = {design.label: design.rank for design in found.designs}
    assert ranks == {"attnres": (1, 1), "preln": (2, 2), "hc": None} and found.designs[-1].label == "hc"
    assert any("Too few paired seeds" in note and "hc" in note for note in found.notes)


def test_a_diverging_design_is_last_with_its_step_and_shrinks_no_comparison():
    rows = simulated(THREE | {"moda": line(-0.1)})
    rows = [r for r in rows if (r.design, r.n_layers) != ("moda", 24)] + [diverged("moda", (24, 20), step=33)]
    found = judged(rows)
    assert [shape.n_layers for shape in found.compared] == [2, 4, 8, 12, 24]
    last = found.designs[-1]
    assert (last.label, last.verdict, last.rank, last.gain) == ("moda", "diverges at M = 24", (4, 4), None)
    assert "at step 33" in last.reason and "0.004" in last.reason
    assert by_label(found)["preln"].rank == (3, 3)


def test_a_seed_that_diverges_at_every_rate_is_divergence_too():
    rows = [r for r in simulated(THREE) if (r.design, r.n_layers, r.seed) != ("hc", 12, 2)]
    assert by_label(judged([*rows, diverged("hc", (12, 40), seed=2)]))["hc"].verdict == "diverges at M = 12"


def test_divergence_is_a_fact_with_one_seed_and_one_design():
    rows = [*simulated({"preln": line(0)}, n=1)[:4], diverged("preln", (24, 20))]
    (found,) = judged(rows).designs
    assert found.verdict == "diverges at M = 24" and found.rank is None and found.slope.value is not None


def test_all_that_diverge_share_the_last_ranks():
    rows = simulated(THREE, n=2)
    for design in ("hc", "attnres"):
        rows = [r for r in rows if (r.design, r.n_layers) != (design, 24)] + [diverged(design, (24, 20))]
    assert {design.label: design.rank for design in judged(rows).designs} == {"preln": (1, 1), "hc": (2, 3), "attnres": (2, 3)}


def test_a_half_finished_table_compares_what_is_there_and_names_the_rest():
    rows = [r for r in simulated(THREE) if r.design != "attnres" or r.n_layers <= 8]
    found = judged([*rows, row("moda", (2, 240), seed=0)])
    assert [shape.n_layers for shape in found.compared] == [2, 4, 8]
    moda = by_label(found)["moda"]
    assert (moda.slope, moda.verdict, moda.n, moda.rank) == (None, None, 0, None) and "compared shapes" in moda.reason


def test_nothing_to_compare_says_why():
    found = judged([row(), row("hc")])
    assert found.pairs == found.notes == () and {design.reason for design in found.designs} == {
        "No two depths are finished for all compared designs."
    }


def test_seeds_that_are_not_everywhere_are_left_out_and_counted():
    found = judged([r for r in simulated(THREE) if (r.design, r.n_layers, r.seed) != ("hc", 8, 1)])
    assert {design.label: design.n for design in found.designs} == {"hc": 2, "attnres": 3, "preln": 3}
    assert any("hc (2 of 3)" in note for note in found.notes) and "2 to 3 paired seeds" in found.notes[0]


def test_a_design_whose_seeds_never_meet_has_no_numbers():
    rows = [r for r in simulated(THREE, n=2) if r.design != "hc" or r.seed == (r.n_layers == 8)]
    assert by_label(judged(rows))["hc"].reason == "It has no seed that is finished at all compared shapes."


def test_the_margin_is_an_option():
    assert by_label(judged(simulated({"preln": line(0)}), margin=0.1))["preln"].verdict == "flat"
    assert "±0.1" in judged(simulated({"preln": line(0)}), margin=0.1).notes[0]


def test_a_learning_rate_search_on_one_seed_compares_the_chosen_runs_on_all_seeds():
    searched = [row(r.design, (r.n_layers, r.d_model), r.loss + 0.1, seed=0, learning_rate=0.008) for r in simulated(THREE, n=1)]
    assert judged([*simulated(THREE), *searched]).designs == judged(simulated(THREE)).designs
