"""Printing: JSON for machines, tables for people."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 120


def console() -> Console:
    """A console on stdout: the terminal's width, or a fixed one with no colours when piped."""
    return Console(width=None if sys.stdout.isatty() else max(PIPED_WIDTH, shutil.get_terminal_size().columns), highlight=False)


def print_json(content: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(content, indent=2, allow_nan=False))


def print_files(written: Sequence[Path]) -> None:
    """Where a report's files are: the tables by name, the charts without their three endings."""
    charts = [path.stem for path in written if path.suffix == ".html"]
    tables = [path.name for path in written if path.stem not in charts]
    drawn = f"; as .html, .png and .pdf: {', '.join(charts)}" if charts else ""
    print(f"report in {written[0].parent}: {', '.join(tables)}{drawn}")


def make_table(*columns: str, left: int = 1) -> Table:
    """A plain table whose first `left` columns are text and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=place >= left)
    return table
