import re

import pytest

from depthbench.report import aggregate, one_table
from depthbench.report.notes import notes, provenance
from depthbench.text import parameter_count, parameter_span, percent_span, ratio_text
from synthetic import diverged, row, seeds, study


def all_notes(rows):
    table = one_table(rows, "here")
    return " ".join(notes(table, aggregate(table)))


def test_one_seed_is_said_to_carry_no_interval_and_no_verdict_is_given():
    text = all_notes(study())
    assert "One seed per cell" in text and "no interval" in text
    assert not re.search(r"improv|better|worse|significant|beats|wins|flat", text)


def test_seeds_are_counted_even_when_uneven():
    assert "over 2 seeds" in all_notes(seeds(study()))
    assert "1 to 2 seeds" in all_notes([*study(), row("preln", seed=1)])


def test_diverged_cells_are_named_with_their_step():
    assert "Diverged, so without a loss: moda 2 × 160 @ 33." in all_notes([*study(), diverged("moda", step=33)])
    text = all_notes([*study(), diverged("hc", learning_rate=0.01)])
    assert "not chosen: hc 2 × 160 @ 120 (1 of 2 runs)." in text and "tried: 0.004, 0.01" in text


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"recipe_hash": "e" * 64}, "recipes"),
        ({"code_version": "0.2.0"}, "code versions"),
        ({"data_fingerprint": "e" * 64}, "training data"),
    ],
)
def test_mixtures_are_said(change, what):
    assert f"differ in {what}" in all_notes([*study(), row("moda", **change)])
    assert "differ" not in all_notes(study())


def test_what_is_not_compared_is_said():
    assert "not compared: moda" in all_notes([*study(), row("moda")])
    assert "No depth trend" in all_notes([row(), row("hc")])


def test_provenance_names_data_recipe_and_code():
    line = provenance(study())
    assert all(part in line for part in ("dddddddddddd", "aaaaaaaaaaaa", "cccccccccccc", "400 steps", "819,200 tokens", "0.1.0"))


def test_numbers_never_turn_into_exponents():
    counts = [0, 999, 2_300, 99_999, 100_000, 999_499, 405_000_000, 999_400_000, 999_999_999, 1_615_000_000]
    assert [parameter_count(n) for n in counts] == ["0", "999", "2.3k", "100k", "0.1M", "0.999M", "405M", "999M", "1B", "1.61B"]
    assert [ratio_text(r) for r in (1024.0, 99.9, 9.142857, 3.5)] == ["1024", "99.9", "9.14", "3.5"]


def test_spans_collapse_when_they_read_the_same():
    assert parameter_span([407_100_000, 407_200_000]) == "407M" and parameter_span([99_000, 451_000_000]) == "99k–451M"
    assert percent_span([0.0, 0.0]) == "0 %" and percent_span([0.0036, 0.138]) == "0.36–13.8 %"
