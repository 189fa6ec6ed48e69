"""The report room: a table of finished runs to numbers, a terminal report, and files. It reads tables, never models.

    Console().print(render(rows, missing))            designs × shapes, depth trends, what is missing
    write_report(rows, missing, out, title)           results.csv, summary.json, loss_vs_aspect_ratio.html .png .pdf

`rows` are `ResultRow`s, one a finished run; `missing` are lines on the runs that have no result. Nothing here imports torch, and
only writing the chart imports altair.
"""

from depthbench.report.folder import write_report
from depthbench.report.terminal import render
from depthbench.verdict.rows import ResultRow, Shape, one_table, to_csv
from depthbench.verdict.summary import CellSummary, Summary, Trend, aggregate

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
