"""Raw files as batches: those of the data set that `data prepare` would make of them, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
import torch
from criteo_rows import criteo_lines, write_text

from megalith.core.errors import ConfigError, DataError
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.ingest import RawDataset, RawFilesConfig
from megalith.data.ingest.index import IndexFile
from megalith.data.loader import Loader
from megalith.data.places import list_files
from megalith.data.prepare import PrepareOptions, prepare

ROWS = 150_000
"""Of more than two row groups."""


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 4, rows)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.table(
        {
            "label": draw.integers(0, 2, rows),
            "price": draw.random(rows),
            "user": draw.integers(0, 5000, rows),
            "tags": pa.ListArray.from_arrays(pa.array(ends), pa.array(draw.integers(0, 50, ends[-1]))),
            "weight": draw.random(rows),
            "seen": draw.integers(1_700_000_000, 1_700_100_000, rows),
        }
    )


def text_table(rows: int = ROWS) -> pa.Table:
    """What CSV can hold, with fields of several lines."""
    content = table(rows)
    notes = pa.array([f'a "{row % 90}",\nb' if row % 7 == 0 else f"n{row % 90}" for row in range(rows)])
    return content.drop_columns(["tags"]).append_column("note", notes)


def in_pieces(folder: Path, whole: pa.Table, ending: str) -> list[Path]:
    """Three files, none of which ends where a row group does."""
    folder.mkdir()
    files = []
    for number, (start, stop) in enumerate(((0, 10_001), (10_001, 90_000), (90_000, whole.num_rows))):
        files.append(folder / f"day-{number}{ending}")
        part = whole.slice(start, stop - start)
        if ending == ".parquet":
            pq.write_table(part, files[-1], row_group_size=20_000)
        elif ending == ".csv":
            arrow_csv.write_csv(part, files[-1])
        else:
            kind = pa.ipc.new_stream if number == 1 else pa.ipc.new_file
            with kind(files[-1], part.schema) as writer:
                writer.write_table(part, max_chunksize=7_000)
    return files


def prepared(files: list[Path], out: Path, **options: object) -> Dataset:
    content = {"files": files, "out": out, "min_count": 3, "threads": 1, **options}
    prepare(PrepareOptions.model_validate(content))
    return Dataset(out)


def same(one: Batch, other: Batch) -> bool:
    names = ("dense", "values", "offsets", "labels", "weights", "event_times")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def batches_are_same(dataset: Dataset, raw: RawDataset, **options: object) -> None:
    settings = {"batch_size": 1000, "shuffle_window_rows": 70_000, "epochs": 1, **options}
    expected = Loader(dataset, ["train"], **settings)
    read = Loader(raw, ["train"], **settings, rows=raw.rows(["train"]))
    assert len(read) == len(expected)
    count = 0
    for one, other in zip(expected.stream(), read.stream(), strict=True):
        assert same(one, other)
        count += 1
    assert count == len(expected)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".csv"])
def test_batches_of_tables_are_those_of_their_prepared_form(tmp_path: Path, ending: str) -> None:
    whole = text_table() if ending == ".csv" else table()
    files = in_pieces(tmp_path / "logs", whole, ending)
    dataset = prepared(
        files, tmp_path / "out", source=ending[1:], weight="weight", event_time="seen", min_count=20
    )
    raw = RawDataset(tmp_path / "logs", RawFilesConfig(vocabulary_from=tmp_path / "out"))
    assert raw.split("train").rows == dataset.split("train").rows == ROWS
    batches_are_same(dataset, raw, seed=3)
    batches_are_same(dataset, raw, shuffle=False, drop_last=False)


def test_batches_of_criteo_text_are_those_of_its_prepared_form(tmp_path: Path) -> None:
    chance, lines = random.Random(1), criteo_lines(800)
    rows = [lines[chance.randrange(len(lines))] for _ in range(70_000)]
    rows[5:5] = ["", ""]
    one = write_text(tmp_path / "day_0", rows[:30_000], "\r\n")
    other = tmp_path / "day_1"
    other.write_text("\n".join(rows[30_000:]))
    dataset = prepared([one, other], tmp_path / "out", source="criteo")
    raw = RawDataset(tmp_path / "day_*", RawFilesConfig(vocabulary_from=tmp_path / "out"))
    batches_are_same(dataset, raw, seed=1, shuffle_window_rows=1000)


def test_a_rank_reads_its_slice_of_every_batch(tmp_path: Path) -> None:
    files = in_pieces(tmp_path / "logs", table(100_000), ".parquet")
    dataset = prepared(files, tmp_path / "out", source="parquet")
    raw = RawDataset(tmp_path / "logs", RawFilesConfig(vocabulary_from=tmp_path / "out"))
    batches_are_same(dataset, raw, rank=1, world_size=3, share="slices")
    batches_are_same(dataset, raw, rank=1, world_size=3, share="rows")


def test_a_loader_resumes_at_the_exact_batch(tmp_path: Path) -> None:
    in_pieces(tmp_path / "logs", table(), ".parquet")
    config = RawFilesConfig(source="parquet", hash_buckets=1000)
    raw = RawDataset(tmp_path / "logs", config)
    settings = {"batch_size": 1000, "seed": 2, "shuffle_window_rows": 70_000}
    loader = Loader(raw, ["train"], **settings, rows=raw.rows(["train"]))
    stream = loader.stream()
    for _ in range(110):
        next(stream)
    state = loader.state_dict()
    rest = [next(stream) for _ in range(60)]
    loader.close()
    again = Loader(raw, ["train"], **settings, rows=raw.rows(["train"]))
    again.load_state_dict(state)
    resumed = again.stream()
    assert all(same(next(resumed), batch) for batch in rest)
    again.close()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"hash_buckets": 77}, {"hash_buckets": 77}),
        ({"raw_ids": ["all"]}, {"raw": ["all"]}),
        ({"hash_buckets": 9, "raw_ids": ["user"], "numeric": "bucket"}, None),
    ],
)
def test_hashed_and_raw_ids_need_no_earlier_pass(tmp_path: Path, config: dict, options: dict | None) -> None:
    files = in_pieces(tmp_path / "logs", table(100_000), ".parquet")
    options = options or {"hash_buckets": 9, "raw": ["user"], "numeric": "bucket"}
    dataset = prepared(files, tmp_path / "out", source="parquet", event_time="seen", **options)
    config = {"source": "parquet", "event_time": "seen", **config}
    raw = RawDataset(tmp_path / "logs", RawFilesConfig.model_validate(config))
    assert raw.schema.categorical == dataset.schema.categorical
    batches_are_same(dataset, raw)


def test_a_feature_that_needs_a_vocabulary_is_refused(tmp_path: Path) -> None:
    in_pieces(tmp_path / "logs", table(100_000), ".parquet")
    config = RawFilesConfig(source="parquet", hash_buckets_of={"user": 10})
    with pytest.raises(ConfigError, match=r"Feature 'tags' .* would need a vocabulary"):
        RawDataset(tmp_path / "logs", config)
    with pytest.raises(ValueError, match="vocabulary_from decides the transforms; leave out numeric"):
        RawFilesConfig(vocabulary_from=tmp_path, numeric="none")


def test_files_are_taken_by_name_and_only_when_complete(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", ".hidden.csv", "_END", "c.csv.tmp", "d.csv.partial-1"):
        (tmp_path / name).write_text("x")
    assert [Path(file.name).name for file in list_files(tmp_path)] == ["a.csv", "b.csv"]
    assert [Path(file.name).name for file in list_files(tmp_path / "b*")] == ["b.csv"]
    (tmp_path / "e.gz").write_text("x")
    with pytest.raises(ConfigError, match=r"e\.gz is compressed"):
        list_files(tmp_path)
    with pytest.raises(DataError, match="nothing does not exist"):
        list_files(tmp_path / "nothing")


def test_a_known_index_is_used_until_its_file_changes(tmp_path: Path) -> None:
    path = write_text(tmp_path / "day", criteo_lines(20))
    config = RawFilesConfig(source="criteo", hash_buckets=10)
    raw = RawDataset(path, config)
    assert raw.split("train").rows == 20
    raw.index_file.write(tmp_path / "index.json")
    (tmp_path / "index.json").write_text(
        (tmp_path / "index.json").read_text().replace('"rows":20', '"rows":19')
    )
    known = RawDataset(path, config, index=IndexFile(tmp_path / "index.json"))
    assert known.split("train").rows == 19
    rows = known.rows(["train"])
    with pytest.raises(DataError, match="has 20 rows where 19 were counted"):
        next(iter(Loader(known, ["train"], 5, rows=rows)))
    write_text(path, criteo_lines(30))
    assert RawDataset(path, config, index=IndexFile(tmp_path / "index.json")).split("train").rows == 30
    (tmp_path / "index.json").write_text("{")
    assert RawDataset(path, config, index=IndexFile(tmp_path / "index.json")).split("train").rows == 30


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["1\t2"], r"day, line 1 has 2 fields instead of 40"),
        ([*criteo_lines(3), criteo_lines(1)[0].replace("\t", "\tx", 1)], "day, line 4 has 'x"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    path = write_text(tmp_path / "day", lines)
    raw = RawDataset(path, RawFilesConfig(source="criteo", hash_buckets=10))
    with pytest.raises(DataError, match=said):
        next(iter(Loader(raw, ["train"], 1, rows=raw.rows(["train"]))))


def test_avazu_text_with_event_times_and_columns_in_another_order(tmp_path: Path) -> None:
    from megalith.data.readers import AVAZU

    draw = random.Random(0)
    names = [column.name for column in AVAZU.columns]

    def lines(order: list[str]) -> list[str]:
        rows = []
        for number in range(300):
            own = {
                "id": str(number),
                "click": str(draw.randrange(2)),
                "hour": f"141021{draw.randrange(24):02d}",
            }
            rows.append(",".join(own.get(name, str(draw.randrange(9))) for name in order))
        return [",".join(order), *rows]

    one = write_text(tmp_path / "a.csv", lines(names))
    other = write_text(tmp_path / "b.csv", lines(names[::-1]))
    dataset = prepared([one, other], tmp_path / "out", source="avazu", event_time="hour")
    raw = RawDataset(tmp_path / "?.csv", RawFilesConfig(vocabulary_from=tmp_path / "out"))
    batches_are_same(dataset, raw, batch_size=70)


def test_libfm_text(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [
        f"{draw.randrange(2)} " + " ".join(f"{draw.randrange(99)}:1" for _ in range(4)) for _ in range(500)
    ]
    path = write_text(tmp_path / "data.libfm", rows)
    dataset = prepared([path], tmp_path / "out", source="libfm")
    raw = RawDataset(path, RawFilesConfig(vocabulary_from=tmp_path / "out"))
    batches_are_same(dataset, raw, batch_size=70)
