import csv
import errno
import json
import subprocess
import sys

import pytest

from depthbench.errors import UserError
from depthbench.report import charts, write_report
from synthetic import NASTY, diverged, row, seeds, study

FILES = ["loss_vs_aspect_ratio.html", "loss_vs_aspect_ratio.pdf", "loss_vs_aspect_ratio.png", "results.csv", "summary.json"]


@pytest.fixture
def no_images(monkeypatch):
    """Leave out drawing, which other tests do."""
    monkeypatch.setattr(charts, "save", lambda chart, folder: [])


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
    assert any("2 seeds" in note for note in found["notes"]) and any("moda 2 × 160 @ 120" in note for note in found["notes"])
    cells = {(cell["label"], cell["shape"]["n_layers"]): cell for cell in found["cells"]}
    assert cells["hc", 2]["loss"] == pytest.approx(1.423) and cells["hc", 2]["seeds"] == [0, 1]
    assert cells["moda", 2]["loss"] is None and cells["moda", 2]["diverged_steps"] == [120]
    trend = {trend["label"]: trend for trend in found["trends"]}["attnres"]
    assert trend["depth_gain"] == pytest.approx(0.06) and trend["best_n_layers"] == 6 and trend["slope"] < 0
    assert set(found["conventions"]) >= {"loss", "slope", "depth_gain", "own_parameters"}


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
