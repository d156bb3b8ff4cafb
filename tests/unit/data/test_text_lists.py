"""Columns of text that hold several ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.data.prepare import PrepareOptions, prepare
from megalith.data.raw import RawBatches, RowTransform, as_table, file_rows, frame_rows
from megalith.data.readers.frames.text_lists import split_texts

LISTS = [["12", "7"], ["7"], [], ["31", "12", "7"], ["12"], []]
ROWS = {"label": [1, 0, 1, 0, 1, 0], "item": [12, 7, 31, 12, 7, 12]}


@given(
    texts=st.lists(st.none() | st.text("ab |;", max_size=8), max_size=6),
    separator=st.sampled_from(["|", ";", "| ", "ab"]),
    binary=st.booleans(),
    start=st.integers(0, 2),
)
def test_texts_are_cut_as_python_cuts_them(
    texts: list[str | None], separator: str, binary: bool, start: int
) -> None:
    column = pa.array(texts, pa.large_string())
    if binary:
        column = column.cast(pa.large_binary())
    wanted = [
        [piece.strip() for piece in (text or "").split(separator) if piece.strip()] for text in texts[start:]
    ]
    assert split_texts(column.slice(start), separator).to_pylist() == wanted


def _prepared(source: Any, path: Path, out: Path, **options: Any) -> dict[str, Any]:
    prepare(
        PrepareOptions(source=source, files=(path,), out=out, min_count=1, share=("item,history",), **options)
    )
    return pq.read_table(next((out / "train").iterdir())).to_pydict()


def _files(folder: Path) -> tuple[Path, Path, Path]:
    lists = pa.table({**ROWS, "history": pa.array(LISTS, pa.list_(pa.string()))})
    texts = pa.table({**ROWS, "history": [" | ".join(ids) for ids in LISTS]})
    paths = folder / "lists.parquet", folder / "texts.parquet", folder / "texts.csv"
    pq.write_table(lists, paths[0])
    pq.write_table(texts, paths[1])
    pa_csv.write_csv(texts, paths[2])
    return paths


def test_lists_in_text_are_the_lists_of_parquet(tmp_path: Path) -> None:
    lists, texts, csv = _files(tmp_path)
    known = _prepared("parquet", lists, tmp_path / "known")
    assert [len(ids) for ids in known["history"]] == [len(ids) for ids in LISTS]
    separators = {"history": "|"}
    assert _prepared("parquet", texts, tmp_path / "a", separators=separators) == known
    assert _prepared("csv", csv, tmp_path / "b", separators=separators) == known


def test_raw_rows_are_cut_too_and_lists_stay(tmp_path: Path) -> None:
    lists, texts, csv = _files(tmp_path)
    _prepared("csv", csv, tmp_path / "data", separators={"history": "|"})
    transform = RowTransform(tmp_path / "data")
    sources = [file_rows(transform, [path]) for path in (lists, texts, csv)]
    sources.append(frame_rows(transform, as_table({"item": ROWS["item"], "history": LISTS})))
    batches = [next(iter(RawBatches(transform, source, 8, threads=1).stream())) for source in sources]
    for batch in batches[1:]:
        assert batch.values.tolist() == batches[0].values.tolist()
        assert batch.offsets.tolist() == batches[0].offsets.tolist()


def test_the_listing_says_where_a_column_looks_like_a_list(tmp_path: Path) -> None:
    _, texts, _ = _files(tmp_path)
    prepare(PrepareOptions(source="parquet", files=(texts,), out=tmp_path / "data", min_count=1))
    schema = json.loads((tmp_path / "data" / "schema.json").read_text())
    (entry,) = [each for each in schema["preparation"]["columns"]["columns"] if each["column"] == "history"]
    assert "--list 'history=|'" in entry["note"]


def test_a_name_that_is_no_column_is_refused(tmp_path: Path) -> None:
    _, _, csv = _files(tmp_path)
    with pytest.raises(ConfigError, match=r"has no column 'histroy'; .*history"):
        _prepared("csv", csv, tmp_path / "data", separators={"histroy": "|"})
