"""Folders: the same bytes from the same seed, the same rows in both formats, the best loss stated."""

from __future__ import annotations

import csv
import hashlib
import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from megalith.core.errors import ConfigError, StorageError
from megalith.data.dataset import Dataset
from megalith.data.synth.calibration import SynthSource
from megalith.data.synth.generate import TRUE_PROBABILITY, generate
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.stream import SynthStream
from megalith.data.synth.text import LineFormatter, scramble

OPTIONS = SynthOptions("criteo", train_rows=70_000, valid_rows=500, test_rows=1000, seed=3, multi_hot=1)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synth") / "data"
    generate(OPTIONS, out, threads=2)
    return out


def test_the_bytes_do_not_depend_on_the_number_of_threads(prepared: Path, tmp_path: Path) -> None:
    generate(OPTIONS, tmp_path / "again", threads=1)
    assert _digests(prepared) == _digests(tmp_path / "again")


def test_another_seed_gives_other_rows(prepared: Path, tmp_path: Path) -> None:
    generate(SynthOptions("criteo", train_rows=1000, seed=4), tmp_path / "other")
    ours = pq.read_table(prepared / "train/part-00000.parquet", columns=["C3"]).slice(0, 1000)
    other = pq.read_table(tmp_path / "other/train/part-00000.parquet", columns=["C3"])
    assert ours != other


def test_parquet_is_a_prepared_data_set(prepared: Path) -> None:
    dataset = Dataset(prepared)
    assert {name: split.rows for name, split in dataset.schema.splits.items()} == {
        "train": 70_000,
        "valid": 500,
        "test": 1000,
    }
    assert len(dataset.schema.numeric) == 13
    assert dataset.schema.feature_names == (*(f"C{place}" for place in range(1, 27)), "M1")
    with pq.ParquetFile(dataset.files("train")[0]) as file:
        assert file.metadata.row_group(0).num_rows == 65_536
        table = file.read()
    for feature in dataset.schema.categorical:
        column = table[feature.name].combine_chunks()
        if feature.multi_hot:
            assert max(len(bag) for bag in column.to_pylist()) <= (feature.max_length or 0)
            column = column.flatten()
        ids = column.to_numpy()
        assert ids.dtype == np.int32
        assert ids.min() >= 0
        assert ids.max() < feature.num_ids


def test_the_best_log_loss_is_that_of_the_stored_probabilities(prepared: Path) -> None:
    dataset = Dataset(prepared)
    for name, split in dataset.schema.splits.items():
        table = pq.read_table(dataset.files(name), columns=["label", TRUE_PROBABILITY])
        labels = table["label"].to_numpy().astype(np.float64)
        chances = table[TRUE_PROBABILITY].to_numpy().astype(np.float64)
        loss = -np.mean(labels * np.log(chances) + (1 - labels) * np.log(1 - chances))
        assert split.best_log_loss == pytest.approx(loss, rel=1e-9)
        assert split.positives == labels.sum()


def test_criteo_text_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    options = SynthOptions("criteo", train_rows=20_000, test_rows=300)
    truths = generate(options, tmp_path / "text", "text")
    assert truths == generate(options, tmp_path / "parquet")
    stream = SynthStream(options)
    text = LineFormatter(stream)
    lines = (tmp_path / "text/train.tsv").read_text().splitlines()
    table = pq.read_table(tmp_path / "parquet/train/part-00000.parquet")
    assert len(lines) == 20_000
    columns = list(zip(*(line.split("\t") for line in lines), strict=True))
    np.testing.assert_array_equal(np.array(columns[0], dtype=np.float32), table["label"].to_numpy())
    for place, shape in enumerate(stream.shape.numeric):
        values = np.array([int(value) if value else 0 for value in columns[1 + place]], dtype=np.float64)
        logs = (np.sign(values) * np.log1p(np.abs(values))).astype(np.float32)
        np.testing.assert_array_equal(logs, table[shape.name].to_numpy())
    for place, field in enumerate(stream.fields):
        raw, ids = columns[14 + place], table[field.shape.name].to_numpy()
        words = scramble((np.maximum(ids, 2) - 2 + text.first_numbers[place]).astype(np.uint32))
        expected = [f"{word:08x}" if one else "" for word, one in zip(words.tolist(), ids, strict=True)]
        assert list(raw) == expected


def test_avazu_text_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    options = SynthOptions("avazu", train_rows=3000, test_rows=10)
    generate(options, tmp_path / "text", "text")
    generate(options, tmp_path / "parquet")
    with (tmp_path / "text/train.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header[:3] == ["id", "click", "hour"]
    named = dict(zip(header, zip(*rows, strict=True), strict=True))
    table = pq.read_table(tmp_path / "parquet/train/part-00000.parquet")
    assert len(set(named["id"])) == 3000
    assert named["hour"][0] == "14102100"
    assert list(map(float, named["click"])) == table["label"].to_pylist()
    hours = table["hour_of_day"].to_numpy() - 2
    assert [f"{hour:02d}" for hour in hours.tolist()] == [hour[-2:] for hour in named["hour"]]
    dates = [datetime.strptime(hour, "%y%m%d%H") for hour in named["hour"]]
    assert [date.weekday() for date in dates] == (table["weekday"].to_numpy() - 2).tolist()
    for name in header[3:]:
        # One text for each id and one id for each text.
        pairs = set(zip(named[name], table[name].to_pylist(), strict=True))
        assert len(pairs) == len(set(named[name])) == len(set(table[name].to_pylist())), name


@pytest.mark.parametrize("source", ["criteo", "avazu"])
def test_text_states_its_best_loss(source: SynthSource, tmp_path: Path) -> None:
    truths = generate(SynthOptions(source, train_rows=500, valid_rows=100), tmp_path / "text", "text")
    stated = json.loads((tmp_path / "text/truth.json").read_text())["splits"]
    assert set(stated) == {"train", "valid"}
    assert stated["train"]["best_log_loss"] == truths["train"].best_log_loss
    assert 0.0 < stated["train"]["best_ne"] < 1.0


def test_no_two_ids_share_a_text() -> None:
    numbers = np.arange(1_000_000, dtype=np.uint32)
    assert len(np.unique(scramble(numbers))) == len(numbers)


def test_multi_hot_text_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--multi-hot"):
        generate(SynthOptions("criteo", train_rows=10, multi_hot=1), tmp_path / "out", "text")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept_unless_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    generate(SynthOptions("avazu", train_rows=10), out)
    before = _digests(out)
    with pytest.raises(StorageError, match="exists already"):
        generate(SynthOptions("avazu", train_rows=20), out)
    assert _digests(out) == before
    generate(SynthOptions("avazu", train_rows=20), out, overwrite=True)
    assert Dataset(out).split("train").rows == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(SynthOptions("avazu", train_rows=100), tmp_path / "out", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
