"""`data prepare csv`: quoting, compression, delimiters, what columns are, and bad rows by file and line."""

from __future__ import annotations

import datetime as dt
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from criteo_rows import read_split
from frames import frame, options_of, prepared, write_frame

from megalith.core.errors import ConfigError, DataError
from megalith.data.prepare import list_frame

HEADER = "label,user,price,city"


def write_csv(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("chunk_bytes", [40, 1 << 20])
def test_csv_and_parquet_of_the_same_values_prepare_alike(tmp_path: Path, chunk_bytes: int) -> None:
    cities = pa.array(['Ulm, "old" town', "two\nlines", "plain", ""] * 10)
    table = frame(city=cities, price=pa.array([0.5, None, -2.0, 1e-3] * 10))
    prepared(write_frame(tmp_path / "in.parquet", table), tmp_path / "parquet", valid_fraction=0.2)
    prepared(
        write_frame(tmp_path / "in.csv", table),
        tmp_path / "csv",
        valid_fraction=0.2,
        chunk_bytes=chunk_bytes,
        threads=2,
    )
    for split in ("train", "valid"):
        assert read_split(tmp_path / "csv", split) == read_split(tmp_path / "parquet", split)


def test_files_may_be_compressed_and_have_any_delimiter(tmp_path: Path) -> None:
    lines = [HEADER, *(f"{row % 2},{row % 5},{row / 8},c{row % 3}" for row in range(300))]
    plain = prepared(write_csv(tmp_path / "plain.csv", *lines), tmp_path / "plain")
    wanted = read_split(tmp_path / "plain")
    assert plain.schema.splits["train"].rows == 300
    text = "".join(f"{line}\r\n" for line in lines).replace(",", ";").encode()
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text))
    with pa.CompressedOutputStream(str(tmp_path / "in.csv.zst"), "zstd") as stream:
        stream.write(text)
    for name in ("in.csv.gz", "in.csv.zst"):
        prepared(tmp_path / name, tmp_path / name.split(".")[-1], source="csv", delimiter=";")
        assert read_split(tmp_path / name.split(".")[-1]) == wanted


def test_types_come_from_the_first_rows(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "in.csv",
        ",label,id,zip,share,when,flag,gap,empty",
        "0,1,7,00501,0.5,2024-01-01 10:00:00,true,,",
        "1,0,-8,10115,NA,2024-01-02T11:00:00,false,3,",
    )
    listing = list_frame(options_of(path, tmp_path / "never", dropped=("when",)))
    found = {entry.column: (entry.type, entry.taken_as) for entry in listing.columns}
    assert found == {
        # Written by pandas: the index has no name.
        "": ("int64", "dropped"),
        "label": ("int64", "label"),
        "id": ("int64", "category"),
        # Zeros in front: a code.
        "zip": ("text", "category"),
        "share": ("double", "number"),
        "when": ("timestamp[us]", "dropped"),
        "flag": ("text", "category"),
        "gap": ("int64", "category"),
        "empty": ("null", "dropped"),
    }
    with pytest.raises(ConfigError, match="--event-time when"):
        prepared(path, tmp_path / "out")


def test_missing_words_are_missing_numbers_but_values_of_categories(tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "in.csv", HEADER, "1,5,NA,NA", "0,,,", "1,5,nan,NA", "0,6, 2.5 ,NA", "1,6,+1e1,x"
    )
    prepared(path, tmp_path / "out", numeric="none", missing_number=-1.0)
    rows = read_split(tmp_path / "out")
    assert rows["price"] == [-1.0, -1.0, -1.0, 2.5, 10.0]
    assert rows["city"] == [2, 0, 2, 2, 3]
    assert rows["user"] == [2, 0, 2, 3, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,5,0.5", "line 6 has 3 fields instead of 4"),
        ("1,5,0.5,a,b", "line 6 has 5 fields instead of 4"),
        ("2,5,0.5,a", r"line 6 has 2 as label \(label\), which is not 0 or 1"),
        ("yes,5,0.5,a", r"line 6 has 'yes' as label \(label\), which is not 0 or 1"),
        ("1,5,dear,a", "line 6 has 'dear' in column price, which is not a number"),
        ("1,5,inf,a", "line 6 has inf in column price, which is not a finite number"),
        ('1,5,0.5,"a', "line 6 opens a quote that is never closed"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    good = [HEADER, "0,1,0.5,a", "", '1,2,0.5,"two', 'lines"', line]
    more = [] if '"a' in line else ["1,2,0.5,last"]
    path = write_csv(tmp_path / "in.csv", *good, *more)
    with pytest.raises(DataError, match=f"in.csv, {message}"):
        prepared(path, tmp_path / "out", numbers=("price",))
    dataset = prepared(path, tmp_path / "out", numbers=("price",), max_bad_rows=1, chunk_bytes=30)
    assert dataset.schema.bad_rows == 1
    assert dataset.schema.splits["train"].rows == 2 + len(more)


def test_a_number_that_no_sample_had_is_a_bad_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from megalith.data.readers.frames import csv_file

    monkeypatch.setattr(csv_file, "SAMPLE_ROWS", 2)
    path = write_csv(tmp_path / "in.csv", HEADER, "1,5,0.5,a", "0,5,1.5,a", "1,5,1.5,a", "1,5,much,a")
    with pytest.raises(DataError, match=r"in.csv, line 5 has 'much' in column price, which is not a number"):
        prepared(path, tmp_path / "out")


def test_columns_of_further_files_are_found_by_name(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv", HEADER, "1,5,0.5,a", "0,6,1.5,b")
    test = write_csv(tmp_path / "test.csv", "city,label,unused,price,user", "a,1,x,0.5,5")
    prepared(train, tmp_path / "out", test_files=(test,), numeric="none")
    first = {name: values[:1] for name, values in read_split(tmp_path / "out").items()}
    assert read_split(tmp_path / "out", "test") == first
    less = write_csv(tmp_path / "less.csv", "label,user,price", "1,5,0.5")
    with pytest.raises(DataError, match=r"less.csv has no column 'city', which other files have"):
        prepared(train, tmp_path / "no", test_files=(less,))


@pytest.mark.parametrize(
    ("lines", "options", "error", "message"),
    [
        (["label,a,a", "1,2,3"], {}, ConfigError, "line 1 names column 'a' twice"),
        (["label;a", "1;2"], {}, ConfigError, "line 1 has one column for the delimiter ','"),
        ([HEADER], {}, DataError, "holds no rows"),
        ([HEADER, "1,2,0.5,a"], {"delimiter": "::"}, ConfigError, "--delimiter must be one character"),
    ],
)
def test_files_that_are_no_csv_are_named(
    tmp_path: Path, lines: list[str], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepared(write_csv(tmp_path / "in.csv", *lines), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_empty_file_and_a_file_cut_off_are_named(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("")
    with pytest.raises(DataError, match=r"in.csv is empty"):
        prepared(tmp_path / "in.csv", tmp_path / "out")
    whole = gzip.compress(f"{HEADER}\n".encode() + b"1,5,0.5,a\n" * 1000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"cut.csv.gz is cut off in the middle of its gzip stream"):
        prepared(tmp_path / "cut.csv.gz", tmp_path / "out", source="csv")


def test_event_times_are_texts_or_integers(tmp_path: Path) -> None:
    moments = [dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC) for hour in (1, 2)]
    seconds = [int(moment.timestamp()) for moment in moments]
    texts = [moment.strftime("%Y-%m-%d %H:%M:%S") for moment in moments]
    for name, values in (("texts", texts), ("seconds", seconds)):
        lines = [f"{row},{value},a" for row, value in enumerate(values)]
        path = write_csv(tmp_path / f"{name}.csv", "label,when,city", *lines)
        prepared(path, tmp_path / name, event_time="when")
        assert read_split(tmp_path / name)["when"] == seconds
        bad = write_csv(tmp_path / f"{name}-bad.csv", "label,when,city", *lines, "1,soon,a")
        with pytest.raises(DataError, match="line 4 has 'soon' in column when, which is no time from 1970"):
            prepared(path, tmp_path / "no", event_time="when", files=(path, bad))


def test_bytes_that_are_no_text_are_values_too(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(
        f"{HEADER}\n".encode() + b"1,5,0.5,\xff\xfe\n0,5,0.5,a\n1,5,0.5,\xff\xfe\n"
    )
    prepared(tmp_path / "in.csv", tmp_path / "out")
    ids = read_split(tmp_path / "out")["city"]
    assert ids[0] == ids[2] != ids[1]


def test_raw_ids_of_integers_are_those_of_parquet(tmp_path: Path) -> None:
    table = frame(user=pa.array([7, -1, 10**15, None] * 10), city=pa.array(["a", "", "b", "c"] * 10))
    for name in ("in.parquet", "in.csv"):
        prepared(write_frame(tmp_path / name, table), tmp_path / name[3:], raw=("user", "city"))
    assert read_split(tmp_path / "csv") == read_split(tmp_path / "parquet")
    assert read_split(tmp_path / "csv")["user"][:4] == [7, -1, 10**15, -(2**63)]
    lines = [HEADER, "1,5,0.5,a", "0,6,0.5,a"]
    path = write_csv(tmp_path / "first.csv", *lines)
    bad = write_csv(tmp_path / "second.csv", *lines, "1,six,0.5,a")
    with pytest.raises(DataError, match=r"second.csv, line 4 has 'six' in column user, which is no integer"):
        prepared(path, tmp_path / "no", files=(path, bad), raw=("user",))
