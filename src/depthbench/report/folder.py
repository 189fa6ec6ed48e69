"""The report on disk: tables as CSV and JSON, charts as HTML, PNG and PDF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from depthbench.errors import UserError
from depthbench.files import make_folder, write_text
from depthbench.report import charts
from depthbench.report.content import read
from depthbench.report.csv_tables import cells_csv, diagnosis_csv, evaluation_csv, pairs_csv
from depthbench.report.diagnoses import diagnosed
from depthbench.report.evaluations import evaluated
from depthbench.report.summary_json import summary_content
from depthbench.verdict.rows import ResultRow, to_csv

DIAGNOSIS = "diagnosis.csv"
EVALUATION = "evaluation.csv"


def write_report(
    rows: Sequence[ResultRow],
    missing: Sequence[str],
    out: Path,
    title: str,
    diagnoses: Mapping[str, Any] | None = None,
    evaluations: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the report on `rows` into the folder `out` and give the paths of its files; `missing` are lines on unfinished cells,
    `diagnoses` and `evaluations` what was found in runs, by the names of their folders.

    Each file replaces the one before in one step; charts that an earlier report had and this one has no numbers for are removed.
    Raises `UserError`, before anything is written, if there are no rows or they may not be reported together (see `tables`), and if
    the folder cannot be written to.
    """
    content = read(rows, missing, out, title)
    texts = {
        "results.csv": to_csv([row for section in content.sections for row in section.table.rows]),
        "summary.json": json.dumps(summary_content(content), indent=2, allow_nan=False) + "\n",
        "cells.csv": cells_csv(content),
        "pairs.csv": pairs_csv(content),
    }
    scores = evaluated(content, evaluations or {})
    optional = {DIAGNOSIS: diagnosis_csv(content, diagnoses or {}), EVALUATION: evaluation_csv(scores)}
    texts |= {name: text for name, text in optional.items() if text}
    drawn = charts.all_charts(content, diagnosed(content, diagnoses or {}), scores)
    make_folder(out)
    try:
        for name, text in texts.items():
            write_text(out / name, text)
        written = [*(out / name for name in texts), *charts.save(drawn, out)]
        charts.remove_others(drawn, out)
        for name in optional.keys() - texts.keys():
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write the report to {out}: {reason}; free space or choose another folder") from error
    return written
