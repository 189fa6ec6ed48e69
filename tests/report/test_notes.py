import re

import pytest

from depthbench.report.content import read
from depthbench.report.notes import notes, provenance
from depthbench.text import parameter_count, parameter_span, ratio_text
from synthetic import diverged, row, seeds, study


def all_notes(rows):
    return " ".join(note for section in read(rows, [], "here").sections for note in notes(section))


def test_one_seed_is_said_to_carry_no_interval_and_no_verdict_is_given():
    text = all_notes(study())
    assert "One paired seed" in text and "without interval, verdict or rank" in text
    assert not re.search(r"improv|better|worse|significant|beats|wins|flat", text)


def test_seeds_are_counted_even_when_uneven():
    assert "over 2 seeds" in all_notes(seeds(study()))
    assert "1 to 2 seeds" in all_notes([*study(), row("preln", seed=1)])


def test_diverged_cells_are_named_with_their_step():
    assert "Diverged, so without a loss: moda 2 × 160 @ 33." in all_notes([*study(), diverged("moda", step=33)])
    text = all_notes([*study(), diverged("hc", learning_rate=0.01)])
    assert "not chosen: hc 2 × 160 @ 120 (1 of 2 runs)." in text and "tried: 0.004, 0.01" in text


def test_different_code_and_versions_in_one_table_are_said():
    assert "made by different code" in all_notes([*study(), row("moda", code_hash="f" * 64)])
    assert "differ in code version" in all_notes([*study(), row("moda", code_version="0.2.0")])
    text = all_notes(study())
    assert "differ" not in text and "different" not in text


@pytest.mark.parametrize("change", [{"recipe_hash": "e" * 64}, {"data_fingerprint": "e" * 64}])
def test_other_recipes_and_data_stand_in_a_table_of_their_own(change):
    sections = read([*study(), *study({"moda": (1.4, 1.3, 1.2)}, **change)], [], "here").sections
    assert len(sections) == 2 and len({section.table.title for section in sections}) == 2
    assert [section.summary.labels for section in sections].count(("moda",)) == 1


def test_what_is_not_compared_is_said():
    assert "Not compared: moda" in all_notes([*study(), row("moda")])
    assert "No depth trend" in all_notes([row(), row("hc")])


def test_an_edge_is_named():
    text = all_notes([row("hc", loss=1.5, learning_rate=0.001), row("hc", loss=1.4, learning_rate=0.002)])
    assert "1 of 1 cells have their best learning rate on an edge" in text and "hc 2 × 160 (0.002, highest)" in text


def test_the_undecided_hear_how_many_seeds_would_decide():
    of_seeds = ((1.50, 1.46, 1.41), (1.50, 1.48, 1.49))
    rows = [r for seed, losses in enumerate(of_seeds) for r in study({"preln": losses}, seed=seed)]
    assert re.search(r"Undecided; seeds that would probably decide, with this noise: preln \d+\.", all_notes(rows))


def test_provenance_names_data_recipe_and_code():
    line = provenance(study())
    assert all(part in line for part in ("dddddddddddd", "aaaaaaaaaaaa", "cccccccccccc", "400 updates", "819,200 tokens", "0.1.0"))


def test_numbers_never_turn_into_exponents():
    counts = [0, 999, 2_300, 99_999, 100_000, 999_499, 405_000_000, 999_400_000, 999_999_999, 1_615_000_000]
    assert [parameter_count(n) for n in counts] == ["0", "999", "2.3k", "100k", "0.1M", "0.999M", "405M", "999M", "1B", "1.61B"]
    assert [ratio_text(r) for r in (1024.0, 99.9, 9.142857, 3.5)] == ["1024", "99.9", "9.14", "3.5"]


def test_spans_collapse_when_they_read_the_same():
    assert parameter_span([407_100_000, 407_200_000]) == "407M" and parameter_span([99_000, 451_000_000]) == "99k–451M"
