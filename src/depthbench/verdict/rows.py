"""What a report is made from: one row a finished run, the columns of a table, and the rows as text for `results.csv`."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace

from depthbench.errors import UserError
from depthbench.text import plain

STATUSES = ("done", "diverged")
# Rows arrive in the order of folders; designs are shown in this one, whatever else comes after them by name.
DESIGNS = ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres", "attnres_block", "moda")


@dataclass(frozen=True)
class Shape:
    """The sizes that make two runs comparable: one column of the table.

    The feed-forward width is not one of them, since budgets that match totals narrow it design by design. `d_ff` is set only in a
    table in which one design was trained with several at the same sizes (see `columns`).
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    context: int
    d_ff: int | None = None

    @property
    def aspect_ratio(self) -> float:
        """`d_model / n_layers`: large is shallow and wide, small is deep and narrow."""
        return self.d_model / self.n_layers

    @property
    def name(self) -> str:
        """Layers × width, such as `16 × 64`."""
        return f"{self.n_layers} × {self.d_model}"

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts from shallow and wide to deep and narrow."""
        return self.n_layers, -self.d_model, self.d_ff or 0, self.n_heads, self.n_kv_heads, self.vocab_size, self.context


@dataclass(frozen=True)
class ResultRow:
    """One finished run.

    `options` is a short text of the design's non-default options, or empty. `loss` is the validation loss in nats per token
    and `bits_per_byte` the same over UTF-8 bytes; both are None for a diverged run, which has `diverged_step` instead.
    `backbone_parameters` counts the blocks, `total_parameters` adds embedding, head and final norm; both include
    `design_parameters`, those the design brings along. `flops` are training FLOPs, `recipe_hash` is of the recipe without its
    learning rate, `code_hash` of the code that decides results, `run` is the folder's name. Raises `UserError` for a status and a
    loss that contradict each other.
    """

    design: str
    options: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    vocab_size: int
    context: int
    learning_rate: float
    seed: int
    status: str
    loss: float | None
    bits_per_byte: float | None
    diverged_step: int | None
    backbone_parameters: int
    total_parameters: int
    design_parameters: int
    tokens: int
    steps: int
    seconds: float
    tokens_per_second: float
    flops: float
    data_fingerprint: str
    validation_sha256: str
    recipe_hash: str
    code_version: str
    code_hash: str
    run: str

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UserError(f"run {self.run}: status must be 'done' or 'diverged', got {self.status!r}")
        if self.status == "done" and (self.loss is None or not math.isfinite(self.loss)):
            raise UserError(f"run {self.run} is done and must have a finite loss, got {self.loss}; delete its result to redo it")
        if self.status == "diverged" and (self.loss is not None or self.diverged_step is None):
            raise UserError(
                f"run {self.run} diverged and must have a step and no loss, got step {self.diverged_step} and loss {self.loss};"
                " delete its result to redo it"
            )

    @property
    def shape(self) -> Shape:
        """The sizes of its model without its `d_ff`."""
        return Shape(self.n_layers, self.d_model, self.n_heads, self.n_kv_heads, self.vocab_size, self.context)

    @property
    def aspect_ratio(self) -> float:
        """`d_model / n_layers`."""
        return self.shape.aspect_ratio

    @property
    def label(self) -> str:
        """Design and options, as on the command line: `hc`, `hc[streams=2]`."""
        return f"{self.design}[{self.options}]" if self.options else self.design


def in_order(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """The rows in the order of every table: design, depth, learning rate, seed."""
    return sorted(rows, key=_order)


def _order(row: ResultRow) -> tuple[object, ...]:
    rank = DESIGNS.index(row.design) if row.design in DESIGNS else len(DESIGNS)
    return rank, row.design, row.options, row.shape.order, row.d_ff, row.learning_rate, row.seed


def columns(rows: Sequence[ResultRow]) -> list[Shape]:
    """The column of every row of a table: its sizes, and in all columns `d_ff` too if one design has several at the same sizes.

    Then runs with and without a narrowed feed-forward are in one table, and no design may be compared with itself narrowed.
    """
    if several_d_ff(rows):
        return [replace(row.shape, d_ff=row.d_ff) for row in rows]
    return [row.shape for row in rows]


def several_d_ff(rows: Sequence[ResultRow]) -> bool:
    """Whether one design was trained with several `d_ff` at the same sizes."""
    widths = {(row.label, row.shape, row.d_ff) for row in rows}
    return len(widths) > len({(label, shape) for label, shape, _ in widths})


def short_names(labels: Sequence[str]) -> dict[str, str]:
    """Labels to print: the folder of a user's file left out (`mine.py:MyResidual`), unless two would then be one."""
    short = {label: plain(re.sub(r"^[^\[]*/(?=[^/\[]+\.py:)", "", label)) for label in labels}
    counts = Counter(short.values())
    return {label: name if counts[name] == 1 else plain(label) for label, name in short.items()}


def to_csv(rows: Sequence[ResultRow]) -> str:
    """`rows` as CSV text: a line each, every field in the order of `ResultRow`, then the aspect ratio; None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(item.name for item in fields(ResultRow)), "aspect_ratio"])
    for row in rows:
        writer.writerow([*(plain(value) if isinstance(value, str) else value for value in astuple(row)), row.aspect_ratio])
    return text.getvalue()
