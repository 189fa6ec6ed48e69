"""The report room: a table of finished runs to a terminal report and files. It reads tables, never models.

    Console().print(render(rows, missing))            losses, depth trends, pairs, scale laws, what is missing
    write_report(rows, missing, out, title)           results.csv, cells.csv, pairs.csv, summary.json and charts

`rows` are `ResultRow`s, one a finished run; `missing` are lines on the runs that have no result. Nothing here imports torch, and
only drawing imports altair.
"""

from depthbench.report.folder import write_report
from depthbench.report.terminal import render
from depthbench.verdict.rows import ResultRow, Shape, to_csv
from depthbench.verdict.summary import CellSummary, Summary, Trend, aggregate
from depthbench.verdict.tables import one_table

__all__ = [
    "CellSummary",
    "ResultRow",
    "Shape",
    "Summary",
    "Trend",
    "aggregate",
    "one_table",
    "render",
    "to_csv",
    "write_report",
]
