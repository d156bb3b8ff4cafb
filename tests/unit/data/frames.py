"""Small tables for the tests of own data, and their preparation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from megalith.data.dataset import Dataset
from megalith.data.prepare import PrepareOptions, prepare


def frame(rows: int = 40, **columns: Any) -> pa.Table:
    """Rows with a label, a user, a price and a city; `columns` add to them or replace them."""
    content = {
        "label": pa.array([row % 2 for row in range(rows)], pa.int8()),
        "user": pa.array([row % 7 for row in range(rows)], pa.int64()),
        "price": pa.array([row / 4 for row in range(rows)], pa.float64()),
        "city": pa.array([f"city {row % 3}" for row in range(rows)]),
    }
    return pa.table({**content, **columns})


def write_frame(path: Path, table: pa.Table) -> Path:
    """The table as the file's name asks: .parquet, .arrow, .feather or .csv."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        arrow_csv.write_csv(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


def options_of(path: Path, out: Path, **options: Any) -> PrepareOptions:
    source = {".parquet": "parquet", ".csv": "csv"}.get(path.suffix, "arrow")
    content = {"source": source, "files": (path,), "out": out, "min_count": 1, "threads": 1, **options}
    return PrepareOptions.model_validate(content)


def prepared(path: Path, out: Path, **options: Any) -> Dataset:
    prepare(options_of(path, out, **options))
    return Dataset(out)
