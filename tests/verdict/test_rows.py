import csv
import io
from dataclasses import fields, replace

import pytest

from depthbench.errors import UserError
from depthbench.report import ResultRow, one_table, to_csv
from depthbench.verdict.rows import short_names
from synthetic import BASE, diverged, row, study


def refusal(rows):
    with pytest.raises(UserError) as caught:
        one_table(rows, "runs/quick")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_csv_has_every_field_in_order_and_reads_back():
    rows = [row(loss=1.0 / 3.0), diverged("hc", step=7, options='a="1,2"')]
    found = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert list(found[0]) == [*(item.name for item in fields(ResultRow)), "aspect_ratio"]
    assert float(found[0]["loss"]) == 1.0 / 3.0 and found[0]["diverged_step"] == ""
    assert found[1]["loss"] == "" and found[1]["diverged_step"] == "7" and found[1]["options"] == 'a="1,2"'
    assert float(found[0]["aspect_ratio"]) == 80.0


def test_label_is_design_and_options():
    assert row("hc").label == "hc"
    assert row("hc", options="streams=2").label == "hc[streams=2]"


def test_table_order_does_not_depend_on_the_order_of_folders():
    rows = [*study(), row("zebra.py:Mine", (6, 96)), row("preln", (6, 96), seed=1)]
    expected = [(r.design, r.n_layers, r.seed) for r in one_table(rows, "here")]
    assert expected[:4] == [("preln", 2, 0), ("preln", 6, 0), ("preln", 6, 1), ("preln", 16, 0)]
    assert [design for design, _, _ in expected][4::3] == ["hc", "attnres", "zebra.py:Mine"]
    assert [(r.design, r.n_layers, r.seed) for r in one_table(rows[::-1], "here")] == expected


def test_no_rows_are_refused_with_the_place():
    assert refusal([]).startswith("no finished results in runs/quick")


def test_different_validation_sets_are_refused_by_run():
    message = refusal([row(run="one"), row("hc", validation_sha256="b" * 64, run="two")])
    assert "aaaaaaaaaaaa: one" in message and "bbbbbbbbbbbb: two" in message


def test_many_runs_on_another_validation_set_are_counted():
    others = [row("hc", shape, validation_sha256="b" * 64) for shape in ((2, 160), (6, 96), (16, 56), (24, 48))]
    assert "and 2 more" in refusal([row(), *others])


@pytest.mark.parametrize("change", [{"recipe_hash": "f" * 64}, {"data_fingerprint": "f" * 64}, {}])
def test_one_cell_of_two_studies_does_not_pass_for_two_seeds(change):
    message = refusal([row(run="first"), row(run="second", **change)])
    assert "first" in message and "second" in message


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_finished_run_needs_a_finite_loss(loss):
    with pytest.raises(UserError, match="run here is done"):
        replace(BASE, loss=loss, run="here")


def test_a_diverged_run_needs_a_step_and_no_loss():
    for change in ({"loss": 1.0, "diverged_step": 3}, {"loss": None, "diverged_step": None}):
        with pytest.raises(UserError, match="run here diverged"):
            replace(BASE, status="diverged", run="here", **change)


def test_unknown_status_is_refused():
    with pytest.raises(UserError, match="'running'"):
        replace(BASE, status="running")


def test_names_lose_their_folder_unless_that_makes_two_one():
    assert short_names(["hc", "/a/b/mine.py:R[x=1/2]"]) == {"hc": "hc", "/a/b/mine.py:R[x=1/2]": "mine.py:R[x=1/2]"}
    assert short_names(["a/mine.py:R", "b/mine.py:R"]) == {"a/mine.py:R": "a/mine.py:R", "b/mine.py:R": "b/mine.py:R"}


def test_names_with_control_characters_or_broken_encoding_are_escaped():
    assert short_names(["a\x1b[31m", "b\udc80"]) == {"a\x1b[31m": "a\\x1b[31m", "b\udc80": "b\\udc80"}
    assert "b\\udc80" in to_csv([row("b\udc80")]).encode().decode()
