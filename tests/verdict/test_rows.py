import csv
import io
from dataclasses import fields, replace

import pytest

from depthbench.errors import UserError
from depthbench.verdict.rows import ResultRow, columns, in_order, short_names, to_csv
from synthetic import BASE, diverged, row, study


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
    expected = [(r.design, r.n_layers, r.seed) for r in in_order(rows)]
    assert expected[:4] == [("preln", 2, 0), ("preln", 6, 0), ("preln", 6, 1), ("preln", 16, 0)]
    assert [design for design, _, _ in expected][4::3] == ["hc", "attnres", "zebra.py:Mine"]
    assert [(r.design, r.n_layers, r.seed) for r in in_order(rows[::-1])] == expected


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


def test_a_narrowed_feed_forward_stays_in_the_column_of_its_sizes():
    assert len(set(columns([row(), row("moda", d_ff=380), row("hc", d_ff=428)]))) == 1


def test_a_design_with_and_without_narrowing_makes_columns_of_their_own_at_all_sizes():
    rows = [row(), row("moda", d_ff=380), row("moda", d_ff=432), row("moda", (6, 96), d_ff=230)]
    assert [(shape.n_layers, shape.d_ff) for shape in columns(rows)] == [(2, 432), (2, 380), (2, 432), (6, 230)]


def test_names_lose_their_folder_unless_that_makes_two_one():
    assert short_names(["hc", "/a/b/mine.py:R[x=1/2]"]) == {"hc": "hc", "/a/b/mine.py:R[x=1/2]": "mine.py:R[x=1/2]"}
    assert short_names(["a/mine.py:R", "b/mine.py:R"]) == {"a/mine.py:R": "a/mine.py:R", "b/mine.py:R": "b/mine.py:R"}


def test_names_with_control_characters_or_broken_encoding_are_escaped():
    assert short_names(["a\x1b[31m", "b\udc80"]) == {"a\x1b[31m": "a\\x1b[31m", "b\udc80": "b\\udc80"}
    assert "b\\udc80" in to_csv([row("b\udc80")]).encode().decode()
