"""What a column of a table is taken for, the rule that decides, and the listing that says so."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from criteo_rows import read_split
from frames import frame, options_of, prepared, write_frame
from typer.testing import CliRunner

from commands import unwrapped
from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError
from megalith.data.prepare import list_frame
from megalith.data.readers import ColumnEntry

TYPES: dict[str, tuple[Any, str, str]] = {
    "float": (pa.array([0.5, 1.5], pa.float32()), "number", "float"),
    "decimal": (pa.array([1, 2], pa.int64()).cast(pa.decimal128(30, 2)), "number", "decimal"),
    "integer": (pa.array([7, 8], pa.uint16()), "category", "integer: an id, unless --number names it"),
    "text": (pa.array(["a", "b"]), "category", "text"),
    "bytes": (pa.array([b"a", b"\xff"]), "category", "text"),
    "boolean": (pa.array([True, False]), "category", "true or false"),
    "frame category": (
        pa.array(["a", "b"]).dictionary_encode(),
        "category",
        "dictionary, as categories of a data frame are",
    ),
    "integers": (pa.array([[1], [2, 3]]), "list of ids", "list of integers"),
    "texts": (pa.array([["a"], []], pa.large_list(pa.string())), "list of ids", "list of texts"),
    "vector": (
        pa.array([[0.5, 1.0], [1.5, 2.0]], pa.list_(pa.float32())),
        "list of floats",
        "list of floats, 2 in every row: numbers vector_0 to vector_1",
    ),
    "fixed": (
        pa.array([[0.5], [1.5]], pa.list_(pa.float64(), 1)),
        "list of floats",
        "list of floats, 1 in every row: numbers fixed_0 to fixed_0",
    ),
    "__index_level_0__": (pa.array([0, 1]), "dropped", "an index that pandas wrote"),
    "nothing": (pa.nulls(2), "dropped", "no value in the sample"),
}


def entries(path: Path, **options: Any) -> dict[str, ColumnEntry]:
    listing = list_frame(options_of(path, path.parent / "never", **options))
    return {entry.column: entry for entry in listing.columns}


def test_every_type_has_a_rule(tmp_path: Path) -> None:
    table = pa.table({"label": [0, 1], **{name: values for name, (values, _, _) in TYPES.items()}})
    found = entries(write_frame(tmp_path / "in.parquet", table))
    assert found["label"].taken_as == "label"
    for name, (_, taken_as, rule) in TYPES.items():
        assert (found[name].taken_as, found[name].rule) == (taken_as, rule), name
    assert not (tmp_path / "never").exists()
    dataset = prepared(tmp_path / "in.parquet", tmp_path / "out")
    assert dataset.schema.numeric == ("float", "decimal", "vector_0", "vector_1", "fixed_0")
    features = ("integer", "text", "bytes", "boolean", "frame category", "integers", "texts")
    assert dataset.schema.feature_names == features
    kept = dataset.schema.preparation["columns"]
    assert kept["sample_rows"] == 2
    assert {entry["column"]: entry["taken_as"] for entry in kept["columns"]} == {
        name: entry.taken_as for name, entry in found.items()
    }


def test_options_decide_before_types_and_take_lists_with_commas(tmp_path: Path) -> None:
    table = frame(age=pa.array(range(40)), **{"a,b": pa.array(range(40))})
    path = write_frame(tmp_path / "in.parquet", table)
    found = entries(path, numbers=("user,age", "a,b"), categories=("price",), dropped=(" city",))
    assert {name: (entry.taken_as, entry.rule) for name, entry in found.items()} == {
        "label": ("label", "named by --label"),
        "user": ("number", "named by --number"),
        "age": ("number", "named by --number"),
        "a,b": ("number", "named by --number"),
        "price": ("category", "named by --category"),
        "city": ("dropped", "named by --drop"),
    }


def test_the_listing_counts_and_shows_values(tmp_path: Path) -> None:
    table = frame(
        gaps=pa.array([1.0, float("nan"), None, 2.0] * 10), bag=pa.array([[1, 2, 3, 4, 5], []] * 20)
    )
    found = entries(write_frame(tmp_path / "in.parquet", table))
    assert (found["user"].distinct, found["user"].missing) == (7, 0.0)
    assert found["user"].examples == ("0", "1", "2")
    assert (found["gaps"].distinct, found["gaps"].missing) == (2, 0.5)
    assert (found["bag"].distinct, found["bag"].examples[0]) == (5, "[1, 2, 3, 4, ...]")
    # Integers with missing values are floats in pandas: a note says so.
    assert "--category gaps" in found["gaps"].note
    assert found["price"].note == ""


def test_a_column_that_numbers_rows_gets_a_note(tmp_path: Path) -> None:
    table = frame(2000, row=pa.array(range(2000)), same=pa.array([5] * 2000))
    listing = list_frame(options_of(write_frame(tmp_path / "in.parquet", table), tmp_path / "never"))
    notes = "\n".join(listing.notes())
    assert "Column 'row' has a value of its own in nearly every row" in notes
    assert "Column 'same' has one value only" in notes
    assert "Integers are taken as ids: user,row,same." in notes


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "when",
            pa.array([dt.datetime(2024, 1, 1)] * 40),
            "a time; keep it with --event-time when,",
        ),
        ("bag", pa.array([[0.5], [0.5, 1.5]] * 20), "lists of 1 to 2 values; pad them to one length"),
        ("bag", pa.array([[], []] * 20, pa.list_(pa.float32())), "lists of 0 to 0 values"),
        ("all", pa.array([{"a": 1}] * 40), "neither a number nor a category; leave it out with --drop all"),
    ],
)
def test_what_is_no_column_of_a_model_is_refused_with_what_to_do(
    tmp_path: Path, name: str, values: pa.Array, message: str
) -> None:
    path = write_frame(tmp_path / "in.parquet", frame(**{name: values}))
    with pytest.raises(ConfigError, match=message):
        prepared(path, tmp_path / "out")
    assert name not in prepared(path, tmp_path / "out", dropped=(name,)).schema.feature_names


def test_a_refused_column_is_listed_before_it_is_refused(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", frame(when=pa.array([dt.date(2024, 1, 1)] * 40)))
    done = CliRunner().invoke(
        app, ["data", "prepare", "parquet", str(path), "--out", str(tmp_path / "out"), "--dry-run"]
    )
    assert "refused" in done.output
    assert "--event-time when" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"numbers": ("user",), "categories": ("user",)},
            "by --number and by --category; name it once",
        ),
        ({"weight": "label"}, "named by --label and by --weight"),
        ({"numbers": ("prise",)}, "no column 'prise'; did you mean 'price'"),
        ({"label": "click"}, "no column 'click'"),
        ({"weight": "tags"}, "which is no weight"),
        ({"numbers": ("nested",)}, "which is not a number; drop it"),
        ({"categories": ("nested",)}, "which is no category; drop it with --drop nested"),
    ],
)
def test_names_that_cannot_be_right_are_one_sentence(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    table = frame(tags=pa.array([["a"]] * 40), nested=pa.array([{"a": 1}] * 40))
    with pytest.raises(ConfigError, match=message):
        entries(write_frame(tmp_path / "in.parquet", table), **options)


def test_vectors_are_numbers_as_they_are(tmp_path: Path) -> None:
    vectors = np.arange(80, dtype=np.float32).reshape(40, 2)
    table = frame(image=pa.array([None, *vectors[1:].tolist()], pa.list_(pa.float32())))
    path = write_frame(tmp_path / "in.parquet", table)
    for numeric in ("log", "bucket"):
        dataset = prepared(path, tmp_path / numeric, numeric=numeric, missing_number=-1.0)
        assert [name for name in dataset.schema.numeric if "image" in name] == ["image_0", "image_1"]
        rows = read_split(tmp_path / numeric)
        # A list that is missing is missing numbers.
        assert rows["image_0"] == [-1.0, *vectors[1:, 0].tolist()]
        assert rows["image_1"] == [-1.0, *vectors[1:, 1].tolist()]


def test_a_vector_of_another_length_is_a_bad_row(tmp_path: Path) -> None:
    first = write_frame(tmp_path / "first.parquet", frame(v=pa.array([[0.5, 1.0]] * 40)))
    lists = [[0.5, 1.0]] * 3 + [[0.5]] + [[0.5, None]] + [[float("inf"), 0.0]] + [[0.5, 1.0]] * 34
    second = write_frame(tmp_path / "second.parquet", frame(v=pa.array(lists)))
    with pytest.raises(DataError, match=r"second.parquet, line 4 has 1 values in column v instead of 2"):
        prepared(first, tmp_path / "out", files=(first, second))
    dataset = prepared(first, tmp_path / "out", files=(first, second), max_bad_rows=3)
    problems = [bad["problem"] for bad in dataset.schema.preparation["first_bad_rows"]]
    assert problems[1:] == ["has a value in column v that is missing or not finite"] * 2
    assert dataset.schema.splits["train"].rows == 77


def test_a_vector_must_not_take_the_name_of_another_column(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", frame(v=pa.array([[0.5]] * 40), v_0=pa.array([0.5] * 40)))
    with pytest.raises(ConfigError, match="would become column 'v_0', which is there"):
        prepared(path, tmp_path / "out")


def test_integers_that_became_floats_have_the_ids_of_integers(tmp_path: Path) -> None:
    whole = frame(user=pa.array([10**12, 5, 7, 5] * 10))
    gaps = frame(user=pa.array([1e12, float("nan"), 7.0, 5.0] * 10))
    prepared(write_frame(tmp_path / "whole.parquet", whole), tmp_path / "a", categories=("user",))
    prepared(write_frame(tmp_path / "gaps.parquet", gaps), tmp_path / "b", vocabulary_from=tmp_path / "a")
    known = read_split(tmp_path / "a")["user"]
    assert read_split(tmp_path / "b")["user"][:4] == [known[0], 0, known[2], known[1]]


def test_a_data_set_of_the_same_vocabulary_lists_what_the_other_chose(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", frame())
    prepared(path, tmp_path / "a", numbers=("user",), dropped=("city",))
    found = entries(path, vocabulary_from=tmp_path / "a")
    assert (found["user"].taken_as, found["user"].rule) == ("number", f"as in {tmp_path / 'a'}")
    assert (found["city"].taken_as, found["city"].rule) == ("dropped", f"not used in {tmp_path / 'a'}")


def test_the_command_lists_columns_and_a_dry_run_only_does(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", frame())
    told = ["data", "prepare", "parquet", str(path), "--number", "user", "--drop", "city"]
    shown = CliRunner().invoke(app, [*told, "--dry-run"])
    for text in ("named by --number", "named by --drop", "0, 0.25, 0.5"):
        assert text in unwrapped(shown.output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet"]
    assert "Name the folder to write with --out" in str(CliRunner().invoke(app, told).exception)
    listed = CliRunner().invoke(app, [*told, "--dry-run", "--json"])
    found = {entry["column"]: entry for entry in json.loads(listed.output)["columns"]}
    assert found["user"]["taken_as"] == "number"
    done = CliRunner().invoke(app, [*told, "--out", str(tmp_path / "out"), "--json"])
    assert json.loads(done.output)["columns"]["columns"] == list(found.values())
    with_table = CliRunner().invoke(app, [*told, "--out", str(tmp_path / "again")])
    assert "named by --number" in unwrapped(with_table.output)


def test_fixed_formats_have_no_listing_and_no_columns_to_name(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("1\n")
    told = ["data", "prepare", "criteo", str(tmp_path / "in.tsv"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*told, "--dry-run"])
    assert "--dry-run lists those of parquet, arrow and csv" in str(done.exception)
    done = CliRunner().invoke(app, [*told, "--number", "C1"])
    assert "--number is for parquet, arrow and csv files" in str(done.exception)


@pytest.mark.parametrize("suffix", [".arrow", ".feather"])
def test_arrow_files_prepare_as_parquet_does(tmp_path: Path, suffix: str) -> None:
    table = frame(tags=pa.array([["a", "b"], []] * 20))
    prepared(write_frame(tmp_path / "in.parquet", table), tmp_path / "parquet")
    prepared(write_frame(tmp_path / f"in{suffix}", table), tmp_path / "arrow")
    assert read_split(tmp_path / "parquet") == read_split(tmp_path / "arrow")


def test_arrow_streams_are_read_and_other_files_named(tmp_path: Path) -> None:
    table = frame()
    with pa.ipc.new_stream(tmp_path / "in.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    prepared(tmp_path / "in.arrows", tmp_path / "stream")
    assert read_split(tmp_path / "stream")["label"] == [0.0, 1.0] * 20
    (tmp_path / "text.arrow").write_text("not an Arrow file at all")
    with pytest.raises(DataError, match=r"text.arrow is not a valid Arrow file"):
        prepared(tmp_path / "text.arrow", tmp_path / "no")
    with pytest.raises(DataError, match=r"absent.arrow does not exist"):
        prepared(tmp_path / "absent.arrow", tmp_path / "no")


def test_a_row_without_a_weight_from_0_on_is_a_bad_row(tmp_path: Path) -> None:
    weights = [1.0, -0.5, None, float("nan"), float("inf"), 0.0, *[2.0] * 34]
    path = write_frame(tmp_path / "in.parquet", frame(w=pa.array(weights)))
    with pytest.raises(DataError, match=r"line 2 has '-0.5' as weight \(w\), which is no number from 0 on"):
        prepared(path, tmp_path / "out", weight="w")
    dataset = prepared(path, tmp_path / "out", weight="w", max_bad_rows=4)
    assert dataset.schema.weight == "w"
    assert read_split(tmp_path / "out")["w"] == [1.0, 0.0, *[2.0] * 34]
    assert "w" not in dataset.schema.numeric
