"""What is in the batches, and what is said about bad input."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_datasets import bag, numbered_dataset, numbered_rows, write_dataset

from commands import run
from megalith.core.errors import DataError
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.data.loader.columns import permute_bags


def read_all(dataset: Dataset) -> None:
    for _ in Loader(dataset, ["train"], 4, shuffle_window_rows=20, drop_last=False):
        pass


def test_a_folder_serves_as_well_as_a_dataset(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [20], group_rows=7)
    for given_as in (dataset.folder, str(dataset.folder)):
        for ours, theirs in zip(Loader(given_as, batch_size=4), Loader(dataset, batch_size=4), strict=True):
            assert torch.equal(ours.values, theirs.values)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("window_rows", [3, 10, 1000])
def test_every_column_stays_with_its_row(tmp_path: Path, shuffle: bool, window_rows: int) -> None:
    dataset = numbered_dataset(tmp_path, [53, 20], group_rows=7, weights=True)
    loader = Loader(dataset, ["train"], 6, shuffle=shuffle, shuffle_window_rows=window_rows, drop_last=False)
    assert (loader.num_dense, loader.num_rows) == (2, 73)
    for batch in loader:
        rows = batch.dense[:, 0].long()
        assert batch.dense.dtype == batch.labels.dtype == torch.float32
        assert batch.values.dtype == batch.offsets.dtype == torch.int64
        assert batch.dense.shape == (len(rows), 2)
        assert torch.equal(batch.dense[:, 1], rows / 2)
        assert torch.equal(batch.labels, (rows % 3 == 0).float())
        assert batch.weights is not None
        assert torch.equal(batch.weights, (1 + rows % 5).float())
        assert torch.equal(batch.values, torch.cat([rows % 1000, 2 * rows % 1000]))
        assert torch.equal(batch.offsets, torch.arange(2 * len(rows) + 1))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("window_rows", [3, 10, 1000])
def test_lists_of_ids_come_feature_major_between_one_hot_features(
    tmp_path: Path, shuffle: bool, window_rows: int
) -> None:
    dataset = numbered_dataset(tmp_path, [53, 20], group_rows=7, bags=True)
    loader = Loader(dataset, ["train"], 6, shuffle=shuffle, shuffle_window_rows=window_rows, drop_last=False)
    assert [feature.name for feature in loader.features] == ["a", "many", "b"]
    for batch in loader:
        rows = [int(row) for row in batch.dense[:, 0]]
        bags = (
            [[row % 1000] for row in rows] + [bag(row) for row in rows] + [[2 * row % 1000] for row in rows]
        )
        found = [
            batch.values[start:stop].tolist()
            for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
        ]
        assert found == bags


@given(lengths=st.lists(st.integers(0, 5), max_size=30), seed=st.integers(0, 100))
@settings(deadline=None)
def test_bags_move_whole(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    bags = [rng.integers(0, 100, length) for length in lengths]
    order = rng.permutation(len(bags))
    values = np.concatenate(bags) if bags else np.empty(0, np.int64)
    moved = permute_bags(values, np.array(lengths, np.int64), order)
    assert moved.lengths.tolist() == [lengths[i] for i in order]
    assert moved.values.tolist() == [value for i in order for value in bags[i]]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int16()), pa.list_(pa.uint32(), 2)])
def test_any_kind_of_list_and_integer_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    table = numbered_rows(25, bags=True)
    many = pa.array([[row, row + 1] for row in range(25)], kind)
    table = table.set_column(table.column_names.index("many"), "many", many)
    table = table.set_column(table.column_names.index("a"), "a", table["a"].cast(pa.int64()))
    table = table.set_column(table.column_names.index("half"), "half", table["half"].cast(pa.float64()))
    table = table.set_column(table.column_names.index("label"), "label", table["label"].cast(pa.bool_()))
    dataset = write_dataset(tmp_path, [table], bags=True)
    # Two ranks, so that slices of row groups are read too.
    for rank in range(2):
        for batch in Loader(dataset, ["train"], 4, rank=rank, world_size=2, drop_last=False):
            rows = batch.dense[:, 0].long()
            assert torch.equal(batch.labels, (rows % 3 == 0).float())
            pairs = torch.stack([rows, rows + 1], dim=1).reshape(-1)
            assert torch.equal(batch.values, torch.cat([rows, pairs, 2 * rows]))


def test_a_schema_without_numbers_or_without_ids_is_read(tmp_path: Path) -> None:
    table = numbered_rows(20)
    for name, update in (("no-numbers", {"numeric": ()}), ("no-ids", {"categorical": ()})):
        dataset = write_dataset(tmp_path / name, [table])
        dataset.schema = dataset.schema.model_copy(update=update)
        batch = next(iter(Loader(dataset, ["train"], 7, shuffle_window_rows=10)))
        assert batch.dense.shape == (7, len(dataset.schema.numeric))
        assert len(batch.values) == 7 * len(dataset.schema.categorical)
        assert batch.num_features == len(dataset.schema.categorical)


def replace(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    column = table[name].to_pylist()
    column[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(column, table[name].type))


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("a", None, "the value is missing"),
        ("a", -1, r"id -1 is outside \[0, 1,000\)"),
        ("b", 1000, r"id 1000 is outside \[0, 1,000\)"),
        ("number", None, "the value is missing"),
        ("half", float("nan"), "value nan is not finite"),
        ("half", float("inf"), "value inf is not finite"),
        ("label", 2.0, r"label 2.0 is outside \[0, 1\]"),
        ("label", float("nan"), "label nan is outside"),
        ("weight", -1.0, "weight -1.0 is negative"),
        ("many", None, "the list is missing"),
        ("many", [3, None], "an id in the list is missing"),
        ("many", [3, 5, 1000], "id 1000 is outside"),
        ("many", [1, 2, 3, 4, 5], "5 ids and the schema allows 4"),
    ],
)
def test_a_bad_value_is_named_with_file_column_and_row(
    tmp_path: Path, column: str, value: object, problem: str
) -> None:
    good = numbered_rows(30, bags=True, weights=True)
    bad = replace(good, column, 17, value)
    dataset = write_dataset(tmp_path, [good, bad], bags=True, weights=True, max_length=4)
    with pytest.raises(DataError, match=f"part-00001.parquet, column '{column}', row 17: {problem}"):
        read_all(dataset)


def test_a_bad_row_is_counted_from_the_start_of_the_file_on_any_rank(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, [replace(numbered_rows(30), "a", 17, -5)], group_rows=20)
    loader = Loader(dataset, ["train"], 3, rank=1, world_size=2)
    with pytest.raises(DataError, match=r"row 17: id -5 is outside"):
        next(iter(loader))


def test_a_column_that_is_missing_or_of_another_type_is_named(tmp_path: Path) -> None:
    table = numbered_rows(20, bags=True)
    dataset = write_dataset(tmp_path, [table.drop_columns(["b"])], bags=True)
    with pytest.raises(DataError, match=r"part-00000.parquet, column 'b' is missing"):
        read_all(dataset)
    for name, wanted in (("a", "integers"), ("many", "lists of integers"), ("number", "numbers")):
        position = table.column_names.index(name)
        text = table.set_column(position, name, pa.array(["x"] * 20))
        dataset = write_dataset(tmp_path, [text], bags=True)
        with pytest.raises(DataError, match=f"column '{name}' has type string and must hold {wanted}"):
            read_all(dataset)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [50])
    path = tmp_path / "train/part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part-00000.parquet is not a whole Parquet file"):
        read_all(dataset)


def test_damaged_data_is_named_with_its_column(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [5000], group_rows=5000)
    path = tmp_path / "train/part-00000.parquet"
    metadata = pq.read_metadata(path)
    content = bytearray(path.read_bytes())
    column = metadata.row_group(0).column(3)
    assert column.path_in_schema == "a"
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + 200] = b"\xff" * 200
    path.write_bytes(bytes(content))
    with pytest.raises(
        DataError, match=r"part-00000.parquet, column 'a', rows 0 to 4,999: the data is damaged"
    ):
        read_all(dataset)


def test_a_flipped_bit_is_found_where_pages_have_checksums(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [50])
    path = tmp_path / "train/part-00000.parquet"
    pq.write_table(
        numbered_rows(50), path, write_page_checksum=True, use_dictionary=False, compression="none"
    )
    column = pq.read_metadata(path).row_group(0).column(2)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"column 'half', rows 0 to 49: the data is damaged"):
        read_all(dataset)


def test_a_file_that_vanishes_is_an_error_of_the_reader(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [50])
    loader = Loader(dataset, ["train"], 5)
    (tmp_path / "train/part-00000.parquet").unlink()
    with pytest.raises(DataError, match=r"part-00000.parquet can no longer be read"):
        next(iter(loader))


def test_rows_that_the_schema_does_not_count_are_refused(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [50])
    pq.write_table(numbered_rows(49), tmp_path / "train/part-00000.parquet")
    with pytest.raises(DataError, match=r"hold 49 rows and schema.json says 50"):
        read_all(dataset)


def test_a_process_ends_with_an_iteration_under_way(tmp_path: Path) -> None:
    numbered_dataset(tmp_path, [500])
    script = (
        "import sys; from megalith.data.dataset import Dataset; from megalith.data.loader import Loader\n"
        "batches = iter(Loader(Dataset(sys.argv[1]), ['train'], 5, shuffle_window_rows=10))\n"
        "next(batches); print('read')"
    )
    done = run([sys.executable, "-c", script, tmp_path])
    assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
