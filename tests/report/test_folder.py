import csv
import errno
import json
import subprocess
import sys

import pytest

from depthbench.errors import UserError
from depthbench.report import charts, write_report
from synthetic import NASTY, diverged, row, seeds, study

CHARTS = ["depth_gain", "depth_gain_vs_published", "loss_vs_aspect_ratio", "published_400m"]
TEXTS = ["cells.csv", "pairs.csv", "results.csv", "summary.json"]
FILES = sorted([*TEXTS, *(f"{chart}.{kind}" for chart in CHARTS for kind in ("html", "pdf", "png"))])


@pytest.fixture
def no_images(monkeypatch):
    """Leave out drawing, which other tests do."""
    monkeypatch.setattr(charts, "save", lambda drawn, folder: [])


def test_a_half_finished_study_with_nasty_names_is_written_whole(tmp_path):
    rows = [*seeds(study())[::2], diverged("moda"), row(NASTY, (6, 96))]
    paths = write_report(rows, ["moda 6 × 96: waiting"], tmp_path / "new" / "report", NASTY)
    assert sorted(path.name for path in paths) == sorted(path.name for path in (tmp_path / "new" / "report").iterdir()) == FILES
    assert all(path.stat().st_size > 0 for path in paths)


@pytest.mark.usefixtures("no_images")
def test_csv_has_a_line_for_each_run_diverged_ones_too(tmp_path):
    write_report([*study(), diverged("moda")], [], tmp_path, "quick")
    found = list(csv.DictReader((tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()))
    assert len(found) == 10 and [r["status"] for r in found].count("diverged") == 1


@pytest.mark.usefixtures("no_images")
def test_summary_says_everything_the_tables_say(tmp_path):
    write_report([*seeds(study()), diverged("moda")], ["moda 6 × 96: waiting"], tmp_path, "quick")
    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert found["title"] == "quick" and found["missing"] == ["moda 6 × 96: waiting"]
    (table,) = found["tables"]
    assert any("2 seeds" in note for note in table["notes"]) and any("moda 2 × 160 @ 120" in note for note in table["notes"])
    cells = {(cell["label"], cell["shape"]["n_layers"]): cell for cell in table["cells"]}
    assert cells["hc", 2]["loss"] == pytest.approx(1.423) and cells["hc", 2]["seeds"] == [0, 1]
    assert cells["moda", 2]["loss"] is None and cells["moda", 2]["diverged_steps"] == [120]
    assert set(found["conventions"]) >= {"loss", "slope", "depth_gain", "own_parameters", "interval", "rank", "pair"}
    design = {design["label"]: design for design in table["designs"]}["attnres"]
    assert design["gain"]["value"] == pytest.approx(0.06) and design["slope"]["value"] < 0 and design["n"] == 2
    assert len(table["pairs"]) == 3 and found["published"]["depth_gain"]["hc"] == 0.029


@pytest.mark.usefixtures("no_images")
def test_a_line_a_cell_and_a_line_a_pair(tmp_path):
    write_report([*seeds(study()), diverged("moda")], [], tmp_path, "quick")
    cells = list(csv.DictReader((tmp_path / "cells.csv").read_text(encoding="utf-8").splitlines()))
    assert len(cells) == 10 and [cell["loss"] for cell in cells if cell["design"] == "moda"] == [""]
    pairs = list(csv.DictReader((tmp_path / "pairs.csv").read_text(encoding="utf-8").splitlines()))
    assert {(pair["a"], pair["b"]) for pair in pairs} == {("preln", "hc"), ("preln", "attnres"), ("hc", "attnres")}
    assert all(float(pair["gain_low"]) < float(pair["gain_difference"]) < float(pair["gain_high"]) for pair in pairs)


def test_charts_that_a_report_no_longer_has_are_removed_and_other_files_stay(tmp_path):
    (tmp_path / "loss_vs_parameters.png").write_text("of an earlier report")
    (tmp_path / "mine.png").write_text("mine")
    write_report([row()], [], tmp_path, "quick")
    assert not (tmp_path / "loss_vs_parameters.png").exists() and (tmp_path / "mine.png").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "no finished results in"), ([row(), row("hc", validation_sha256="b" * 64)], "different validation sets")],
)
def test_refused_rows_leave_the_folder_as_it_was(tmp_path, rows, message):
    (tmp_path / "results.csv").write_text("old")
    with pytest.raises(UserError, match=message):
        write_report(rows, [], tmp_path, "quick")
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"] and (tmp_path / "results.csv").read_text() == "old"


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "report").write_text("mine")
    with pytest.raises(UserError, match="cannot write to"):
        write_report(study(), [], tmp_path / "report", "quick")
    assert (tmp_path / "report").read_text() == "mine"


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "results.csv").write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("depthbench.files.os.fsync", full)
    with pytest.raises(UserError, match="No space left on device; free space or choose another folder"):
        write_report(study(), [], tmp_path, "quick")
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"] and (tmp_path / "results.csv").read_text() == "old"


def test_the_room_imports_neither_torch_nor_altair():
    code = "import sys, depthbench.report; sys.exit(bool({'torch', 'altair', 'vl_convert'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
