"""Options of `data prepare` for single features: shared vocabularies, counts, buckets, lengths; splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from criteo_rows import criteo_lines, read_split, write_text
from frames import frame, prepared, write_frame
from pydantic import ValidationError
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import Dataset, DatasetSchema, read_schema, write_schema
from megalith.data.loader import Loader
from megalith.data.prepare import PrepareOptions, prepare


def shop() -> pa.Table:
    """Items 1 to 4 and histories of them, with a column between the two."""
    return frame(
        8,
        item=pa.array([1, 1, 2, 3, 4, 4, None, 2]),
        shelf=pa.array(["a", "a", "a", "b", "b", "c", "c", "c"]),
        history=pa.array([[3, 3], [], [2, 9], None, [1, 2, 3], [9], [4, None], [1]]),
    )


def vocabulary(folder: Path, name: str) -> dict[str, int]:
    table = pq.read_table(folder / "vocabulary" / f"{name}.parquet").to_pydict()
    return dict(zip(table["text"], table["count"], strict=True))


def text_rows(folder: Path, feature: str, names: str) -> list[Any]:
    table = pq.read_table(folder / "vocabulary" / f"{names}.parquet").to_pydict()
    texts = {0: "", 1: "?", **dict(zip(table["id"], table["text"], strict=True))}
    return [
        [texts[id_] for id_ in cell] if isinstance(cell, list) else texts[cell]
        for cell in read_split(folder)[feature]
    ]


def test_a_shared_vocabulary_counts_all_its_features(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    dataset = prepared(path, tmp_path / "out", share=("item,history",), min_count=2)
    # Each occurs once or twice as an item and once or twice in histories; 9 only in histories.
    assert vocabulary(tmp_path / "out", "item") == {"1": 4, "2": 4, "3": 4, "4": 3, "9": 2}
    assert not (tmp_path / "out" / "vocabulary" / "history.parquet").exists()
    assert text_rows(tmp_path / "out", "item", "item") == ["1", "1", "2", "3", "4", "4", "", "2"]
    histories = [["3", "3"], [], ["2", "9"], [], ["1", "2", "3"], ["9"], ["4", ""], ["1"]]
    assert text_rows(tmp_path / "out", "history", "item") == histories
    # Features of one vocabulary follow each other, as a table of both reads them.
    assert dataset.schema.feature_names == ("user", "city", "item", "history", "shelf")
    shared = {feature.name: (feature.num_ids, feature.vocabulary) for feature in dataset.schema.categorical}
    assert shared["item"] == shared["history"] == (7, "item")
    assert shared["shelf"] == (5, None)
    assert json.loads((tmp_path / "out" / "schema.json").read_text())["version"] == 4


def test_a_shared_vocabulary_is_applied_to_later_files(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    prepared(path, tmp_path / "a", share=("history,item",))
    again = prepared(path, tmp_path / "b", vocabulary_from=tmp_path / "a")
    assert read_split(tmp_path / "a") == read_split(tmp_path / "b")
    assert again.schema.categorical == Dataset(tmp_path / "a").schema.categorical
    assert sorted(file.name for file in (tmp_path / "b" / "vocabulary").iterdir()) == [
        "city.parquet",
        "history.parquet",
        "shelf.parquet",
        "user.parquet",
    ]


def test_shared_ids_may_be_hashed_or_raw(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    hashed = prepared(path, tmp_path / "hashed", share=("item,history",), hash_buckets_of={"history": 50})
    rows = read_split(tmp_path / "hashed")
    assert rows["history"][7] == [rows["item"][0]]
    assert {feature.name: feature.num_ids for feature in hashed.schema.categorical}["item"] == 52
    raw = prepared(path, tmp_path / "raw", share=("item,history",), raw=("item", "history"))
    assert [feature.num_ids for feature in raw.schema.categorical if feature.vocabulary] == [None, None]
    with pytest.raises(ConfigError, match="share their ids; name all of them in --raw, or none"):
        prepared(path, tmp_path / "no", share=("item,history",), raw=("item",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": ("item",)}, "names one feature; name those that share"),
        ({"share": ("item,histori",)}, "'histori', which is no feature; did you mean 'history'"),
        ({"share": ("item,history", "item,shelf")}, "names 'item' twice"),
        (
            {"share": ("item,history",), "min_count_of": {"item": 2, "history": 3}},
            "share a vocabulary and have several values of --min-count",
        ),
        ({"min_count_of": {"itm": 2}}, "--min-count names 'itm', which is no feature; did you mean 'item'"),
        ({"hash_buckets_of": {"price": 9}}, "--hash-buckets names 'price', which is no feature"),
        ({"hash_buckets": 9, "min_count_of": {"item": 2}}, "'item' is hashed and has no vocabulary"),
        ({"max_length_of": {"item": 2}}, "--max-length names 'item', which is no list of ids"),
    ],
)
def test_settings_of_features_that_cannot_be_are_one_sentence(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(write_frame(tmp_path / "in.parquet", shop()), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_counts_buckets_and_sizes_are_set_by_feature(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    told = ["data", "prepare", "parquet", str(path), "--out", str(tmp_path / "out"), "--json"]
    told += ["--min-count", "3", "--min-count", "item=2,history=1", "--max-vocabulary", "history=2"]
    done = CliRunner().invoke(app, [*told, "--hash-buckets", "user=100"])
    assert json.loads(done.output)["ids"] == {
        "user": 102,
        # Two of the three cities occur three times.
        "city": 4,
        "item": 2 + 3,
        "shelf": 2 + 2,
        "history": 2 + 2,
    }
    names = {file.stem for file in (tmp_path / "out" / "vocabulary").iterdir()}
    assert names == {"city", "item", "shelf", "history"}
    again = [*told[:4], "--out", str(tmp_path / "again"), "--vocabulary-from", str(tmp_path / "out")]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert read_split(tmp_path / "again") == read_split(tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--min-count", "2", "--min-count", "3"], "two values for all columns"),
        (["--min-count", "user=2", "--min-count", "user=3"], "names 'user' twice"),
        (["--max-length", "history=long"], "must be a whole number for all columns, or NAME=NUMBER"),
    ],
)
def test_values_by_column_that_cannot_be_read_are_one_sentence(
    tmp_path: Path, given: list[str], message: str
) -> None:
    done = CliRunner().invoke(app, ["data", "prepare", "parquet", "x", "--out", str(tmp_path / "o"), *given])
    assert message in str(done.exception)


def test_counts_by_feature_are_for_text_formats_too(tmp_path: Path) -> None:
    write_text(tmp_path / "in.tsv", criteo_lines(200))
    content = {"source": "criteo", "files": [tmp_path / "in.tsv"], "hash_buckets_of": {"C3": 5}}
    prepare(PrepareOptions.model_validate({**content, "out": tmp_path / "out", "min_count_of": {"C1": 1}}))
    ids = {feature.name: feature.num_ids for feature in Dataset(tmp_path / "out").schema.categorical}
    prepare(PrepareOptions.model_validate({**content, "out": tmp_path / "plain"}))
    plain = {feature.name: feature.num_ids for feature in Dataset(tmp_path / "plain").schema.categorical}
    assert ids["C3"] == plain["C3"] == 7
    assert ids["C1"] > plain["C1"]
    assert {name for name in ids if ids[name] != plain[name]} == {"C1"}


@pytest.mark.parametrize(("keep", "wanted"), [("last", ["2", "3"]), ("first", ["1", "2"])])
def test_long_lists_keep_their_last_or_first_ids(tmp_path: Path, keep: str, wanted: list[str]) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    dataset = prepared(path, tmp_path / "out", max_length_of={"history": 2}, keep=keep)
    histories = text_rows(tmp_path / "out", "history", "history")
    assert histories == [["3", "3"], [], ["2", "9"], [], wanted, ["9"], ["4", ""], ["1"]]
    assert {feature.name: feature.max_length for feature in dataset.schema.categorical}["history"] == 2
    # What was cut off counts for nothing.
    counted = {"last": ("1", 1), "first": ("3", 2)}[keep]
    assert counted in vocabulary(tmp_path / "out", "history").items()
    one = prepared(path, tmp_path / "one", max_length=1, keep=keep)
    assert max(map(len, read_split(tmp_path / "one")["history"])) == 1
    assert len(list(Loader(one, ["train"], batch_size=8, epochs=1))) == 1


def test_files_can_be_named_for_validation(tmp_path: Path) -> None:
    train = write_frame(tmp_path / "train.parquet", frame(20))
    valid = write_frame(tmp_path / "valid.parquet", frame(12, user=pa.array([99] * 12)))
    test = write_frame(tmp_path / "test.parquet", frame(4))
    told = ["data", "prepare", "parquet", str(train), "--valid", str(valid), "--valid", str(valid)]
    done = CliRunner().invoke(app, [*told, "--test", str(test), "--out", str(tmp_path / "out"), "--json"])
    splits = json.loads(done.output)["splits"]
    assert {name: split["rows"] for name, split in splits.items()} == {"train": 20, "valid": 24, "test": 4}
    assert list(splits) == ["train", "valid", "test"]
    # The vocabulary is that of training rows alone.
    assert set(read_split(tmp_path / "out", "valid")["user"]) == {1}
    assert read_schema(tmp_path / "out").preparation["valid_files"] == [str(valid), str(valid)]
    done = CliRunner().invoke(app, [*told, "--valid-fraction", "0.1", "--out", str(tmp_path / "no")])
    assert "--valid names the rows of the split valid; leave out --valid-fraction" in str(done.exception)
    with pytest.raises(DataError, match=r"absent.parquet does not exist"):
        prepared(train, tmp_path / "no", valid_files=(tmp_path / "absent.parquet",))


def test_text_formats_take_validation_files(tmp_path: Path) -> None:
    train = write_text(tmp_path / "train.libfm", ["1 7:1 9:1", "0 8:1 9:1"])
    valid = write_text(tmp_path / "valid.libfm", ["1 7:1 9:1 3:1"])
    content = {"source": "libfm", "files": [train], "valid_files": [valid], "out": tmp_path / "out"}
    prepare(PrepareOptions.model_validate({**content, "min_count": 1}))
    # Rows of all files decide what the entries are.
    assert Dataset(tmp_path / "out").schema.feature_names == ("features",)
    assert read_split(tmp_path / "out", "valid")["features"] == [[3, 2, 1]]


def test_a_schema_whose_sharers_are_apart_is_refused(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    schema = prepared(path, tmp_path / "out", share=("item,history",)).schema
    apart = (*schema.categorical[1:3], schema.categorical[4], schema.categorical[3])
    with pytest.raises(ValidationError, match="must follow each other"):
        DatasetSchema.model_validate({**schema.model_dump(), "categorical": apart})
    with pytest.raises(ValidationError, match="cannot share the vocabulary"):
        DatasetSchema.model_validate({**schema.model_dump(), "categorical": schema.categorical[3:]})


def test_a_data_set_without_sharing_reads_as_before(tmp_path: Path) -> None:
    schema = prepared(write_frame(tmp_path / "in.parquet", shop()), tmp_path / "out").schema
    content = json.loads((tmp_path / "out" / "schema.json").read_text())
    assert content["version"] == 1
    assert set(content["categorical"][0]) == {"name", "num_ids", "max_length"}
    assert "event_time" not in content
    write_schema(tmp_path, schema)
    assert read_schema(tmp_path) == read_schema(tmp_path / "out")


def test_prepare_says_how_many_values_fall_out_of_the_vocabulary(tmp_path: Path) -> None:
    path = write_frame(tmp_path / "in.parquet", shop())
    # Shelf b occurs twice, a and c three times.
    command = ["data", "prepare", "parquet", str(path), "--min-count", "1", "--min-count", "shelf=3"]
    printed = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")]).output
    assert "Values outside the vocabulary share one id: 25% of shelf." in " ".join(printed.split())
    shares = read_schema(tmp_path / "out").preparation["unknown_shares"]
    assert shares == {"user": 0.0, "city": 0.0, "item": 0.0, "shelf": 0.25, "history": 0.0}
    later = ["data", "prepare", "parquet", str(path), "--vocabulary-from", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*later, "--out", str(tmp_path / "later"), "--json"])
    assert json.loads(result.output)["unknown_shares"] == shares
