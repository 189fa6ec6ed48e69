"""Tables in the terminal: columns that are too many for the width go into further tables below, under the same first column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 22
GAP = 2


@dataclass(frozen=True)
class Column:
    """A heading, of one line or several, and an entry for every row. Names (`fold`) go over several lines if they are long."""

    head: str
    entries: Sequence[str | Text]
    justify: str = "right"
    fold: bool = False

    @property
    def width(self) -> int:
        """Of its widest line, in columns of the terminal."""
        longest = max(cell_len(line) for line in [*self.head.split("\n"), *map(str, self.entries)])
        return min(LABEL_WIDTH, longest) if self.fold else longest


def wrapped(first: Column, others: Sequence[Column], width: int) -> Iterator[RenderableType]:
    """`others` beside `first` in as many tables as `width` asks for; long entries of `first` are folded."""
    label_width = min(LABEL_WIDTH, first.width)
    for number, chunk in enumerate(_chunks(others, width - label_width)):
        if number > 0:
            yield Text()
        yield _table(first, label_width, chunk)


def _chunks(columns: Sequence[Column], room: int) -> Iterator[list[Column]]:
    """The columns in runs that fit into `room`, at least one each."""
    chunk: list[Column] = []
    left = room
    for column in columns:
        if chunk and GAP + column.width > left:
            yield chunk
            chunk, left = [], room
        chunk.append(column)
        left -= GAP + column.width
    yield chunk


def _table(first: Column, label_width: int, columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, GAP - 1), pad_edge=False, header_style="bold")
    table.add_column(first.head, width=label_width, overflow="fold")
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.justify == "left" else "right"
        if column.fold:
            table.add_column(column.head, justify=justify, width=column.width, overflow="fold")
        else:
            table.add_column(column.head, justify=justify, no_wrap=True)
    for row, label in enumerate(first.entries):
        table.add_row(_text(label), *(_text(column.entries[row]) for column in columns))
    return table


def _text(entry: str | Text) -> Text:
    """Names are text and no markup."""
    return Text(entry) if isinstance(entry, str) else entry
