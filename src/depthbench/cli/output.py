"""Printing: JSON for machines, tables for people."""

from __future__ import annotations

import json
import shutil
import sys
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


def make_table(*columns: str, left: int = 1) -> Table:
    """A plain table whose first `left` columns are text and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=place >= left)
    return table
