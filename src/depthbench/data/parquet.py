"""Documents from one column of a Parquet file, a few rows at a time: memory does not grow with the file or its row groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from depthbench.data.unpack import HashedFile
from depthbench.errors import UserError

ROWS, BUFFER = 128, 2**20  # rows at a time, bytes read ahead


def rows(raw: HashedFile, path: Path, column: str) -> Iterator[str | None]:
    """The texts of `column` in order, None where there is none; `raw`, the same file, is read to its end for the hash.

    Raises `UserError` if the file is damaged or `column` is not a column of text.
    """
    number, size = 0, path.stat().st_size
    with opened(path) as file:
        check_column(file.schema_arrow, column, path)
        for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
            for value in batch.column(0):
                number += 1
                yield text_of(value, path, column, number)
            raw.done = size * number // file.metadata.num_rows
    while raw.read(BUFFER):
        pass


def text_of(value: Any, path: Path, column: str, number: int) -> str | None:
    """The text of one value."""
    try:
        text: str | None = value.as_py()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, row {number}: {column!r} is not UTF-8 at byte {error.start}") from error
    return text


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A Parquet file. Raises `UserError` if it is damaged."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's own
            raise
        raise UserError(f"{path}: broken parquet ({str(error).partition(chr(10))[0]})") from error


def check_file(path: Path, column: str) -> None:
    """Raise `UserError` if the file is damaged at its end, or `column` is not a column of text."""
    try:
        with opened(path) as file:
            check_column(file.schema_arrow, column, path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def check_column(schema: Any, column: str, path: Path) -> None:
    """Raise `UserError` naming the columns there are unless `column` is one of text."""
    columns = {field.name: field.type for field in schema}
    texts = [name for name, kind in columns.items() if is_text(kind)]
    if column not in columns:
        named = ", ".join(columns) or "none"
        raise UserError(f"{path} has no column {column!r}; its columns: {named}; name the one with the text by --text-column")
    if column not in texts:
        named = ", ".join(texts) or "none"
        raise UserError(f"column {column!r} of {path} holds {columns[column]}, not text; its columns of text: {named}")


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds strings."""
    from pyarrow import types

    plain = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return plain or (types.is_dictionary(kind) and is_text(kind.value_type))
