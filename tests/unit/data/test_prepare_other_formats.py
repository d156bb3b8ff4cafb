"""Avazu CSV, libFM and libFFM, Parquet: what becomes of their columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from criteo_rows import criteo_lines, read_split, write_text

from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import Dataset
from megalith.data.prepare import PrepareOptions, prepare
from megalith.data.readers import AVAZU

HEADER = ",".join(column.name for column in AVAZU.columns)


def run(source: str, out: Path, *files: Path, **options: Any) -> Dataset:
    content = {"source": source, "files": files, "out": out, "min_count": 1, **options}
    prepare(PrepareOptions.model_validate(content))
    return Dataset(out)


def texts(folder: Path, feature: str) -> dict[int, str]:
    """The vocabulary as id -> text, with the two ids that every feature has."""
    table = pq.read_table(folder / "vocabulary" / f"{feature}.parquet").to_pydict()
    return {0: "", 1: "?", **dict(zip(table["id"], table["text"], strict=True))}


def values(folder: Path, feature: str, split: str = "train") -> list[Any]:
    """A feature's column as text again."""
    names = texts(folder, feature)
    column = read_split(folder, split)[feature]
    return [[names[id_] for id_ in cell] if isinstance(cell, list) else names[cell] for cell in column]


def avazu_rows() -> list[str]:
    rest = ",".join(f"v{place}" for place in range(21))
    return [f"100{row},{row % 2},141021{row:02d},{rest}" for row in range(24)]


def test_avazu_hours_become_hour_of_day_and_weekday(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.csv", [HEADER, *avazu_rows()])
    dataset = run("avazu", tmp_path / "out", path, chunk_bytes=300)
    assert dataset.schema.feature_names[:4] == ("hour_of_day", "weekday", "C1", "banner_pos")
    assert len(dataset.schema.feature_names) == 23
    assert values(tmp_path / "out", "hour_of_day") == [str(hour) for hour in range(24)]
    # 21 October 2014 was a Tuesday.
    assert set(values(tmp_path / "out", "weekday")) == {"1"}
    assert read_split(tmp_path / "out")["label"] == [0.0, 1.0] * 12
    assert set(values(tmp_path / "out", "C21")) == {"v20"}


def test_avazu_columns_are_found_by_name(tmp_path: Path) -> None:
    def reverse(line: str) -> str:
        return ",".join(reversed(line.split(",")))

    lines = [HEADER, *avazu_rows()]
    run("avazu", tmp_path / "one", write_text(tmp_path / "one.csv", lines))
    run(
        "avazu", tmp_path / "two", write_text(tmp_path / "two.csv", [reverse(line) for line in lines], "\r\n")
    )
    assert read_split(tmp_path / "one") == read_split(tmp_path / "two")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.replace("click", "clik"), "line 1: column 'clik' is not one of avazu; did you mean 'click'"),
        (HEADER.replace("click,", ""), "line 1: the header names column 'click' 0 times"),
        (HEADER.replace("C20", "C21"), "line 1: the header names column 'C20' 0 times"),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, header: str, message: str) -> None:
    path = write_text(tmp_path / "train.csv", [header, *avazu_rows()])
    with pytest.raises(DataError, match=message):
        run("avazu", tmp_path / "out", path)


def test_a_bad_hour_and_a_header_without_rows_are_named(tmp_path: Path) -> None:
    rows = avazu_rows()
    path = write_text(tmp_path / "train.csv", [HEADER, rows[0], rows[1].replace("14102101", "14132101")])
    with pytest.raises(DataError, match=r"line 3 has '14132101' in field 3 \(hour\), which is not an hour"):
        run("avazu", tmp_path / "out", path)
    with pytest.raises(DataError, match="holds no rows"):
        run("avazu", tmp_path / "out", write_text(tmp_path / "none.csv", [HEADER]))


def test_libfm_rows_of_equal_length_are_fields(tmp_path: Path) -> None:
    train = write_text(tmp_path / "train.libfm", ["1 7:1 9:1", "-1 8:1 9:1 ", "0 7:1 9:1"])
    test = write_text(tmp_path / "test.libfm", ["+1 8:1 10:1"])
    dataset = run("libfm", tmp_path / "out", train, test_files=[test])
    assert dataset.schema.feature_names == ("f0", "f1")
    assert read_split(tmp_path / "out") == {"label": [1.0, 0.0, 0.0], "f0": [2, 3, 2], "f1": [2, 2, 2]}
    assert read_split(tmp_path / "out", "test") == {"label": [1.0], "f0": [3], "f1": [1]}


@pytest.mark.parametrize("chunk_bytes", [12, 1 << 20])
def test_libfm_rows_of_different_length_are_one_bag(tmp_path: Path, chunk_bytes: int) -> None:
    path = write_text(tmp_path / "train.libfm", ["1 7:1 9:1", "-1", "1 9:1", "1 3:1 4:1 9:1"])
    dataset = run("libfm", tmp_path / "out", path, chunk_bytes=chunk_bytes)
    [feature] = dataset.schema.categorical
    assert (feature.name, feature.multi_hot, feature.num_ids) == ("features", True, 6)
    assert values(tmp_path / "out", "features") == [["7", "9"], [], ["9"], ["3", "4", "9"]]


def test_positions_can_be_forced_and_then_other_rows_are_bad(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.libfm", ["1 7:1 9:1", "-1 7:1", "0 8:1 9:1"])
    with pytest.raises(DataError, match="line 2 has 1 entries instead of 2"):
        run("libfm", tmp_path / "out", path, fields="positional")
    dataset = run("libfm", tmp_path / "out", path, fields="positional", max_bad_rows=1)
    assert dataset.schema.feature_names == ("f0", "f1")
    assert values(tmp_path / "out", "f0") == ["7", "8"]


def test_bags_survive_splits_limits_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megalith.data.prepare import writer

    monkeypatch.setattr(writer, "GROUP_ROWS", 7)
    monkeypatch.setattr(writer, "PART_ROWS", 14)
    lines = [" ".join(["1", *(f"{row * 10 + at}:1" for at in range(row % 4))]) for row in range(60)]
    wanted = [[entry.split(":")[0] for entry in line.split()[1:]] for line in lines[:50]]
    path = write_text(tmp_path / "train.libfm", lines)
    run("libfm", tmp_path / "all", path, chunk_bytes=40, limit_rows=50)
    assert values(tmp_path / "all", "features") == wanted
    # Values of held-out rows alone are unknown; here every value stands in one row only.
    run("libfm", tmp_path / "cut", path, chunk_bytes=40, limit_rows=50, valid_fraction=0.3, valid_from="tail")
    assert values(tmp_path / "cut", "features") == wanted[:35]
    assert values(tmp_path / "cut", "features", "valid") == [["?"] * len(row) for row in wanted[35:]]


def test_libffm_names_its_fields(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.ffm", ["1 3:7:1 5:9:1", "0 5:8:1 5:9:1", "0 3:7:1"])
    dataset = run("libfm", tmp_path / "out", path, chunk_bytes=16)
    assert [(one.name, one.multi_hot) for one in dataset.schema.categorical] == [("f3", False), ("f5", True)]
    assert values(tmp_path / "out", "f3") == ["7", "", "7"]
    assert values(tmp_path / "out", "f5") == [["9"], ["8", "9"], []]
    more = write_text(tmp_path / "more.ffm", ["1 3:7:1 3:8:1"])
    with pytest.raises(DataError, match="field 3 holds several entries"):
        run("libfm", tmp_path / "no", more, vocabulary_from=tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 7:1", "has 1 entries instead of 2"),
        ("2 7:1 8:1", "begins with '2', which is not a label"),
        ("1 7:1 8", "has '8' as entry 2, which is not index:value"),
        ("1 7:0.5 8:1", "has '7:0.5' as entry 1, whose value is not 1"),
    ],
)
def test_a_bad_libfm_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    known = write_text(tmp_path / "known.libfm", ["1 7:1 8:1"])
    run("libfm", tmp_path / "known", known)
    path = write_text(tmp_path / "train.libfm", ["0 7:1 8:1", line])
    with pytest.raises(DataError, match=f"line 2 {message}"):
        run("libfm", tmp_path / "out", path, vocabulary_from=tmp_path / "known")


def parquet_table() -> pa.Table:
    return pa.table(
        {
            "clicked": pa.array([1, 0, 1, 0], pa.int8()),
            "price": pa.array([1.5, None, -2.0, 0.0], pa.float64()),
            "age": pa.array([30, 40, None, 30], pa.int32()),
            "city": pa.array(["Ulm", "a city with a long name", None, "Ulm"]).dictionary_encode(),
            "tags": pa.array([["a", "b"], [], None, ["b"]], pa.list_(pa.string())),
            "items": pa.array([[5], [6, 5], [], [7]], pa.large_list(pa.int64())),
        }
    )


def test_parquet_columns_are_typed_by_themselves(tmp_path: Path) -> None:
    pq.write_table(parquet_table(), tmp_path / "in.parquet", row_group_size=2)
    dataset = run("parquet", tmp_path / "out", tmp_path / "in.parquet", label="clicked", numeric="none")
    assert dataset.schema.label == "clicked"
    assert dataset.schema.numeric == ("price",)
    assert [(one.name, one.multi_hot) for one in dataset.schema.categorical] == [
        ("age", False),
        ("city", False),
        ("tags", True),
        ("items", True),
    ]
    rows = read_split(tmp_path / "out")
    assert rows["clicked"] == [1.0, 0.0, 1.0, 0.0]
    assert rows["price"] == [1.5, 0.0, -2.0, 0.0]
    assert values(tmp_path / "out", "age") == ["30", "40", "", "30"]
    assert values(tmp_path / "out", "city") == ["Ulm", "a city with a long name", "", "Ulm"]
    assert values(tmp_path / "out", "tags") == [["a", "b"], [], [], ["b"]]
    assert values(tmp_path / "out", "items") == [["5"], ["6", "5"], [], ["7"]]


def test_parquet_columns_can_be_chosen(tmp_path: Path) -> None:
    pq.write_table(parquet_table(), tmp_path / "in.parquet")
    dataset = run(
        "parquet",
        tmp_path / "out",
        tmp_path / "in.parquet",
        label="clicked",
        numbers=["age"],
        categories=["price"],
        dropped=["tags", "items", "city"],
    )
    assert dataset.schema.numeric == ("age",)
    assert dataset.schema.feature_names == ("price",)
    with pytest.raises(ConfigError, match=r"no column 'click'; did you mean 'clicked'"):
        run("parquet", tmp_path / "no", tmp_path / "in.parquet", label="click")


def test_parquet_and_text_of_the_same_values_prepare_alike(tmp_path: Path) -> None:
    lines = criteo_lines(200)
    names = ["label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27))]
    cells = list(zip(*(line.split("\t") for line in lines), strict=True))
    columns = [
        pa.array([float(cell) if cell else None for cell in column])
        if place <= 13
        else pa.array([cell or None for cell in column])
        for place, column in enumerate(cells)
    ]
    pq.write_table(pa.table(columns, names), tmp_path / "in.parquet")
    write_text(tmp_path / "in.tsv", lines)
    for numeric in ("log", "bucket", "none"):
        run("criteo", tmp_path / f"text-{numeric}", tmp_path / "in.tsv", numeric=numeric)
        run("parquet", tmp_path / f"parquet-{numeric}", tmp_path / "in.parquet", numeric=numeric)
        found, wanted = (read_split(tmp_path / f"{kind}-{numeric}") for kind in ("parquet", "text"))
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert found[name] == pytest.approx(wanted[name], rel=1e-6), name


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    table = parquet_table().set_column(0, "clicked", pa.array([1.0, 2.0, None, 0.0]))
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(DataError, match=r"in.parquet, line 2 has 2 as label \(clicked\)"):
        run("parquet", tmp_path / "out", tmp_path / "in.parquet", label="clicked")
    dataset = run("parquet", tmp_path / "out", tmp_path / "in.parquet", label="clicked", max_bad_rows=2)
    assert dataset.schema.bad_rows == 2
    assert values(tmp_path / "out", "items") == [["5"], ["7"]]
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(DataError, match="not a valid Parquet file"):
        run("parquet", tmp_path / "no", tmp_path / "text.parquet")
    with pytest.raises(DataError, match="does not exist"):
        run("parquet", tmp_path / "no", tmp_path / "absent.parquet")
    pq.write_table(
        pa.table({"label": [1], "when": pa.array([0], pa.timestamp("s"))}), tmp_path / "time.parquet"
    )
    with pytest.raises(ConfigError, match="--drop when"):
        run("parquet", tmp_path / "no", tmp_path / "time.parquet")
    assert not (tmp_path / "no").exists()
