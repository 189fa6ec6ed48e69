"""Files as real data comes: Parquet and Zstandard."""

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet


def write_parquet(path: Path, texts: list[Any], column: str = "text", row_group: int = 7, **more: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({column: texts} | more), path, row_group_size=row_group)
    return path


def zstd(content: bytes) -> bytes:
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as packed:
        packed.write(content)
    return out.getvalue().to_pybytes()
