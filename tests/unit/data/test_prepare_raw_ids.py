"""`data prepare --raw`: integers keep their value, texts become one fixed number, no vocabulary is made."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError
from megalith.data.dataset import MISSING_RAW_ID, Dataset
from megalith.data.loader import Loader
from megalith.data.prepare import PrepareOptions, prepare
from megalith.data.readers.raw_ids import integer_keys, raw_ids
from megalith.data.stats import measure
from megalith.ops.text.keys_twin import token_key_twin

EXTREMES = [0, -1, 2**63 - 1, -(2**63) + 1, None, 5, 5, 10**12]


def text_id(text):
    """The raw id of a text, in plain Python."""
    turned = token_key_twin(text.encode()) ^ 1 << 63
    return turned - (1 << 64) if turned >= 1 << 63 else turned


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_the_raw_id_of_an_integer_is_the_integer(values):
    assert raw_ids(integer_keys(np.array(values, dtype=np.int64))).tolist() == values


@pytest.fixture
def files(tmp_path):
    """Eight rows of integers with nulls, unsigned ones, texts, and lists of integers."""
    table = pa.table(
        {
            "label": pa.array([0, 1] * 4, pa.float32()),
            "x": pa.array([0.5] * 8, pa.float32()),
            "user": pa.array(EXTREMES, pa.int64()),
            "big": pa.array([2**64 - 1, 2**63 + 1, 1, 2, 3, 4, 5, None], pa.uint64()),
            "page": pa.array(["a", "a long text", "", None, "a", "z" * 8, "é", "a long text"]),
            "clicks": pa.array([[1, -1], [], None, [5, None], [7], [7], [7], [7]], pa.list_(pa.int64())),
            "site": pa.array([1, 1, 2, 2, 3, 3, 3, 3], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def prepared(files, out, raw):
    prepare(PrepareOptions(source="parquet", files=(files,), out=out, raw=raw, min_count=1, threads=1))
    return Dataset(out)


def columns(dataset):
    return pq.read_table(dataset.files("train")[0]).to_pydict()


def test_integers_keep_their_value_and_texts_get_a_fixed_number(files, tmp_path):
    dataset = prepared(files, tmp_path / "out", ("user", "big", "page", "clicks"))
    found, missing = columns(dataset), MISSING_RAW_ID
    assert found["user"] == [missing if value is None else value for value in EXTREMES]
    assert found["big"] == [-1, 1 - 2**63, 1, 2, 3, 4, 5, missing]
    texts = ["a", "a long text", "", "", "a", "z" * 8, "é", "a long text"]
    assert found["page"] == [text_id(text) if text else missing for text in texts]
    assert found["clicks"] == [[1, -1], [], [], [5, missing], [7], [7], [7], [7]]
    # A feature that was not asked for has ids of a vocabulary.
    assert found["site"] == [3, 3, 4, 4, 2, 2, 2, 2]
    raw = {feature.name: feature.num_ids for feature in dataset.schema.categorical}
    assert raw == {"user": None, "big": None, "page": None, "clicks": None, "site": 5}
    assert [path.name for path in (tmp_path / "out" / "vocabulary").iterdir()] == ["site.parquet"]
    assert json.loads((tmp_path / "out" / "schema.json").read_text())["version"] == 2


def test_ids_of_texts_never_change(files, tmp_path):
    """Tables and checkpoints know rows by these numbers."""
    found = columns(prepared(files, tmp_path / "out", ("page",)))["page"]
    assert found[:3] == [97 - 2**63, 1608216978343553104, MISSING_RAW_ID]


def test_the_loader_gives_raw_ids_as_they_are(files, tmp_path):
    dataset = prepared(files, tmp_path / "out", ("all",))
    loader = Loader(dataset, ("train",), 8, shuffle=False, epochs=1)
    (batch,) = loader
    loader.close()
    found = columns(dataset)
    expected = [
        value
        for name in dataset.schema.feature_names
        for row in found[name]
        for value in (row if isinstance(row, list) else [row])
    ]
    assert batch.values.dtype == torch.int64
    assert batch.values.tolist() == expected


def test_statistics_of_raw_ids(files, tmp_path):
    prepared(files, tmp_path / "out", ("all",))
    users = measure(tmp_path / "out").features[0]
    assert (users.name, users.num_ids, users.distinct_ids, users.values) == ("user", None, 6, 8)
    assert users.missing_share == 1 / 8
    assert users.top_1_share == 2 / 8
    shown = CliRunner().invoke(app, ["data", "stats", str(tmp_path / "out")])
    assert "raw" in shown.output


def test_text_files_can_be_raw(tmp_path):
    log = tmp_path / "log.tsv"
    rows = [["1", *("3",) * 13, *(f"word-{row}-{n}" for n in range(26))] for row in range(4)]
    log.write_text("".join("\t".join(row) + "\n" for row in rows))
    out = tmp_path / "out"
    arguments = ["data", "prepare", "criteo", str(log), "--out", str(out), "--raw", "C1, C3", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = columns(Dataset(out))
    assert found["C1"] == [text_id(f"word-{row}-0") for row in range(4)]
    assert found["C3"] == [text_id(f"word-{row}-2") for row in range(4)]
    assert json.loads(result.stdout)["ids"]["C1"] is None


def test_further_files_have_the_same_ids(files, tmp_path):
    prepared(files, tmp_path / "first", ("user", "page"))
    prepare(
        PrepareOptions(
            source="parquet",
            files=(files,),
            out=tmp_path / "second",
            vocabulary_from=tmp_path / "first",
            threads=1,
        )
    )
    assert columns(Dataset(tmp_path / "second")) == columns(Dataset(tmp_path / "first"))


@pytest.mark.parametrize("raw", [("usre",), ("user", "label")])
def test_a_name_of_no_feature_is_refused(files, tmp_path, raw):
    with pytest.raises(ConfigError, match=r"--raw names '.*', which is no feature"):
        prepared(files, tmp_path / "out", raw)


def test_files_that_disagree_on_what_a_raw_column_holds_are_refused(files, tmp_path):
    table = pq.read_table(files)
    other = table.set_column(table.schema.get_field_index("user"), "user", table["user"].cast(pa.string()))
    pq.write_table(other, tmp_path / "other.parquet")
    both = (files, tmp_path / "other.parquet")
    options = PrepareOptions(source="parquet", files=both, out=tmp_path / "out", raw=("user",), threads=1)
    with pytest.raises(DataError, match=r"'user' has type string, other than in the first file"):
        prepare(options)
