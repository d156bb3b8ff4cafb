"""Writes small prepared data sets for tests: each row can be told from its values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megalith.core.schema import FeatureSpec
from megalith.data.dataset import Dataset, DatasetSchema, Split, write_schema

NUM_IDS = 1000


def numbered_rows(count: int, *, bags: bool = False, weights: bool = False, first: int = 0) -> pa.Table:
    """Row r: number r, one-hot ids r and 2r mod 1000; with `bags` a list of r mod 4 ids between them."""
    rows = np.arange(first, first + count)
    columns: dict[str, object] = {
        "label": (rows % 3 == 0).astype(np.float32),
        "number": rows.astype(np.float32),
        "half": (rows / 2).astype(np.float32),
        "a": (rows % NUM_IDS).astype(np.int32),
        "b": (2 * rows % NUM_IDS).astype(np.int32),
    }
    if bags:
        columns["many"] = pa.array([bag(int(row)) for row in rows], pa.list_(pa.int32()))
    if weights:
        columns["weight"] = (1 + rows % 5).astype(np.float32)
    return pa.table(columns)


def bag(row: int) -> list[int]:
    return [(row + 7 * i) % NUM_IDS for i in range(row % 4)]


def schema_of(
    files: Sequence[str],
    rows: int,
    *,
    bags: bool = False,
    weights: bool = False,
    max_length: int | None = None,
) -> DatasetSchema:
    features = [FeatureSpec(name="a", num_ids=NUM_IDS), FeatureSpec(name="b", num_ids=NUM_IDS)]
    if bags:
        # Between the two, so that one-hot and multi-hot features alternate.
        features.insert(1, FeatureSpec(name="many", num_ids=NUM_IDS, max_length=max_length))
    return DatasetSchema(
        source="test",
        weight="weight" if weights else None,
        numeric=("number", "half"),
        categorical=tuple(features),
        splits={"train": Split(rows=rows, positives=0, files=tuple(files))},
    )


def write_dataset(
    folder: Path,
    tables: Sequence[pa.Table],
    *,
    group_rows: int = 10,
    bags: bool = False,
    weights: bool = False,
    max_length: int | None = None,
) -> Dataset:
    """A data set with one file for each table."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    files = [f"train/part-{number:05d}.parquet" for number in range(len(tables))]
    for name, table in zip(files, tables, strict=True):
        pq.write_table(table, folder / name, row_group_size=group_rows)
    rows = sum(table.num_rows for table in tables)
    write_schema(folder, schema_of(files, rows, bags=bags, weights=weights, max_length=max_length))
    return Dataset(folder)


def numbered_dataset(
    folder: Path, sizes: Sequence[int], *, group_rows: int = 10, bags: bool = False, weights: bool = False
) -> Dataset:
    """Files of these sizes whose rows are numbered through."""
    starts = np.cumsum([0, *sizes])[:-1]
    tables = [
        numbered_rows(size, bags=bags, weights=weights, first=int(start))
        for size, start in zip(sizes, starts, strict=True)
    ]
    return write_dataset(folder, tables, group_rows=group_rows, bags=bags, weights=weights)
