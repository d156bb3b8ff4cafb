"""Values that are longer than a key: their texts in the vocabulary, for every source."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from criteo_rows import criteo_lines, write_text
from frames import frame, options_of, prepared, write_frame

from megalith.data.prepare import PrepareOptions, prepare
from megalith.data.prepare import texts as texts_module
from megalith.data.prepare.texts import HashedTexts
from megalith.data.prepare.vocabulary import open_writer
from megalith.data.readers import AVAZU
from megalith.ops.text.keys_twin import token_key_twin

WORDS = (
    "Zürich Hauptbahnhof",
    "東京スカイツリー",
    "a plain long name",
    "éééé",
    "emoji 🦑🦑",
    "short",
    'say "x", y',
)


def names(rows: int, seed: int = 0, kinds: int = 300) -> list[str]:
    """Texts of which few are frequent and many are rare; missing ones too."""
    draw = random.Random(seed)
    picks = [int(draw.paretovariate(0.5)) % kinds for _ in range(rows)]
    return ["" if draw.random() < 0.05 else f"{WORDS[pick % len(WORDS)]} {pick}" for pick in picks]


def vocabulary(folder: Path, feature: str) -> dict[str, list[Any]]:
    return pq.read_table(folder / "vocabulary" / f"{feature}.parquet").to_pydict()


def assert_texts_are_those_of_the_keys(folder: Path, feature: str, expected: set[str]) -> None:
    found = vocabulary(folder, feature)
    assert set(found["text"]) == expected
    assert [token_key_twin(text.encode()) for text in found["text"]] == found["key"]
    assert found["id"] == list(range(2, 2 + len(found["id"])))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ("parquet", pa.string()),
        ("arrow", pa.large_string()),
        ("arrow", pa.string_view()),
        ("arrow", pa.binary_view()),
        ("csv", pa.string()),
    ],
    ids=str,
)
def test_long_values_of_tables_have_their_text(tmp_path: Path, ending: str, kind: pa.DataType) -> None:
    values = names(500)
    path = write_frame(tmp_path / f"in.{ending}", frame(500, city=pa.array(values).cast(kind)))
    prepared(path, tmp_path / "out", chunk_bytes=2000, categories=("city",))
    assert_texts_are_those_of_the_keys(tmp_path / "out", "city", set(values) - {""})
    assert not (tmp_path / "out" / ".work").exists()


def test_binary_dictionary_and_large_numbers_have_their_text(tmp_path: Path) -> None:
    values = [value or "none at all" for value in names(200)]
    numbers = [10**11 + row % 9 for row in range(200)]
    table = frame(
        200,
        city=pa.array([value.encode() for value in values], pa.binary()),
        town=pa.array(values).dictionary_encode(),
        user=pa.array(numbers, pa.int64()),
        price=pa.array([float(number) for number in numbers]),
    )
    path = write_frame(tmp_path / "in.parquet", table)
    prepared(path, tmp_path / "out", categories=("city", "town", "user", "price"))
    for feature in ("city", "town"):
        assert_texts_are_those_of_the_keys(tmp_path / "out", feature, set(values))
    for feature in ("user", "price"):
        assert_texts_are_those_of_the_keys(tmp_path / "out", feature, {str(number) for number in numbers})


def test_only_values_that_keep_an_id_are_in_the_vocabulary(tmp_path: Path) -> None:
    """Counted over two files, up to the limit of rows."""
    parts = [names(400, seed) for seed in (1, 2)]
    paths = tuple(
        write_frame(tmp_path / f"{place}.parquet", frame(400, city=pa.array(values)))
        for place, values in enumerate(parts)
    )
    prepared(paths[0], tmp_path / "out", files=paths, min_count=3, limit_rows=700)
    all_values = [*parts[0], *parts[1]][:700]
    kept = {value for value in all_values if value and all_values.count(value) >= 3}
    assert len(kept) < len(set(all_values)) - 1
    assert_texts_are_those_of_the_keys(tmp_path / "out", "city", kept)


def test_lists_and_shared_vocabularies_have_texts_of_all_members(tmp_path: Path) -> None:
    items = names(300, 3)
    lists = [names(row % 5, row) for row in range(300)]
    table = frame(300, item=pa.array(items), history=pa.array(lists, pa.list_(pa.string())))
    path = write_frame(tmp_path / "in.parquet", table)
    prepared(path, tmp_path / "out", share=("item,history",), max_length=2, keep="first")
    cut = {value for values in lists for value in values[:2]}
    assert_texts_are_those_of_the_keys(tmp_path / "out", "item", (set(items) | cut) - {""})


@pytest.mark.parametrize("memory_bytes", [1, 1 << 29])
def test_threads_and_memory_change_no_byte(tmp_path: Path, memory_bytes: int) -> None:
    table = frame(3000, city=pa.array(names(3000, kinds=2000)), town=pa.array(names(3000, 1)))
    path = write_frame(tmp_path / "in.csv", table)
    settings = {"chunk_bytes": 3000, "min_count": 2, "valid_fraction": 0.2}
    expected = None
    for threads in (1, 4):
        out = tmp_path / f"{threads}"
        prepared(path, out, threads=threads, memory_bytes=memory_bytes, **settings)
        found = files_of(out)
        expected = expected or found
        assert found == expected
    prepared(path, tmp_path / "roomy", **settings)
    assert files_of(tmp_path / "roomy") == expected
    assert None not in vocabulary(tmp_path / "roomy", "city")["text"]


@pytest.mark.parametrize("memory_bytes", [1, 100_000, 1 << 29])
def test_runs_of_many_batches_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr(texts_module, "_RUN_BATCH_BYTES", 300)
    monkeypatch.setattr(texts_module, "_BATCH_ROWS", 17)
    values = names(3000, kinds=2000)
    path = write_frame(tmp_path / "in.csv", frame(3000, city=pa.array(values)))
    prepared(path, tmp_path / "out", chunk_bytes=3000, memory_bytes=memory_bytes)
    assert_texts_are_those_of_the_keys(tmp_path / "out", "city", set(values) - {""})


def test_bytes_that_are_no_text_and_huge_values_have_none(tmp_path: Path) -> None:
    values = [b"\xff not a text", b"x" * 4096, b"y" * 4097, "längere Namen".encode()] * 10
    path = write_frame(tmp_path / "in.parquet", frame(city=pa.array(values, pa.binary())))
    prepared(path, tmp_path / "out", categories=("city",))
    found = vocabulary(tmp_path / "out", "city")
    texts = dict(zip(found["key"], found["text"], strict=True))
    expected = [None, "x" * 4096, None, "längere Namen"]
    assert [texts[token_key_twin(value)] for value in values[:4]] == expected


def test_a_vocabulary_of_another_data_set_keeps_its_texts(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", frame(500, city=pa.array(names(500))))
    prepared(path, tmp_path / "out")
    later = write_frame(tmp_path / "later.parquet", frame(500, city=pa.array(names(500, 5))))
    prepare(options_of(later, tmp_path / "later", vocabulary_from=tmp_path / "out"))
    assert vocabulary(tmp_path / "later", "city") == vocabulary(tmp_path / "out", "city")


def test_criteo_values_have_their_text_despite_bad_rows(tmp_path: Path) -> None:
    lines = criteo_lines(300)
    bad = ["0\tx" + lines[0][1:], "too\tfew", ""]
    path = write_text(tmp_path / "in.tsv", [*lines[:100], *bad, *lines[100:]], ending="\r\n")
    for threads in (1, 4):
        content = {"source": "criteo", "files": (path,), "out": tmp_path / f"{threads}", "min_count": 1}
        settings = {"chunk_bytes": 5000, "max_bad_rows": 2, "threads": threads}
        prepare(PrepareOptions.model_validate({**content, **settings}))
    expected = {line.split("\t")[14] for line in lines} - {""}
    assert_texts_are_those_of_the_keys(tmp_path / "1", "C1", expected)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "4")


def test_avazu_values_have_their_text(tmp_path: Path) -> None:
    header = ",".join(column.name for column in AVAZU.columns)
    rest = ",".join(f"v{place}" for place in range(20))
    rows = [f"100{row},{row % 2},141021{row:02d},{rest},the value {row % 5}" for row in range(24)]
    path = write_text(tmp_path / "in.csv", [header, *rows])
    content = {"source": "avazu", "files": (path,), "out": tmp_path / "out", "min_count": 1}
    prepare(PrepareOptions.model_validate({**content, "chunk_bytes": 300}))
    assert_texts_are_those_of_the_keys(tmp_path / "out", "C21", {f"the value {row}" for row in range(5)})


@pytest.mark.parametrize("field", ["", "7:"])
def test_indices_of_entries_have_their_text(tmp_path: Path, field: str) -> None:
    indices = [f"index-of-entry-{row % 11}" for row in range(60)]
    lines = [f"{row % 2} {field}{index}:1\t{field}{row % 3}:1.0" for row, index in enumerate(indices)]
    path = write_text(tmp_path / "in.txt", [*lines, f"1 {field}5:1"])
    content = {"source": "libfm", "files": (path,), "out": tmp_path / "out", "min_count": 1}
    prepare(PrepareOptions.model_validate({**content, "chunk_bytes": 200}))
    feature = "f7" if field else "features"
    assert_texts_are_those_of_the_keys(tmp_path / "out", feature, {*indices, "0", "1", "2", "5"})


def test_of_two_texts_with_one_hash_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "feature.parquet"
    keys = np.array([1 << 63, 97], np.uint64)
    with open_writer(path) as writer:
        ids, texts = np.array([2, 3], np.int32), [None, "a"]
        writer.write_batch(
            pa.record_batch(
                [keys, np.ones(2, np.uint64), ids, pa.array(texts)], names=["key", "count", "id", "text"]
            )
        )
    texts_of = HashedTexts(4, 1, tmp_path / "texts")
    assert texts_of.missing(keys, ids).tolist() == [0]
    for text in (b"the first text", b"another text"):
        texts_of.add(np.array([2], np.int32), pa.array([text], pa.large_binary()))
        texts_of.flush()
    assert len(texts_of.missing(keys, ids)) == 0
    texts_of.save(path)
    assert pq.read_table(path)["text"].to_pylist() == ["the first text", "a"]
