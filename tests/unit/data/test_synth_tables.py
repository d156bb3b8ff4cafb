"""Data of a stated shape: tables, rows, ids and numbers as asked for, and labels that depend on them."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError
from megalith.data.dataset import Dataset
from megalith.data.synth.options import SynthOptions
from megalith.data.synth.stream import BLOCK_ROWS, SynthStream
from megalith.data.synth.tables import make_shapes, model_shape


def _synth(folder, *arguments):
    words = ["data", "synth", *map(str, arguments), "--rows", "300", "--threads", "1", "--out", str(folder)]
    return CliRunner().invoke(app, words)


def test_tables_rows_ids_and_numbers_are_those_asked_for(tmp_path):
    result = _synth(
        tmp_path / "data", "tables", "--table-rows", "100,3,50", "--lookups", "4,1,1", "--numbers", 2
    )
    assert result.exit_code == 0, result.output
    dataset = Dataset(tmp_path / "data")
    features = {feature.name: feature for feature in dataset.schema.categorical}
    assert {name: (each.num_ids, each.max_length) for name, each in features.items()} == {
        "t0": (100, 4),
        "t1": (3, 1),
        "t2": (50, 1),
    }
    assert dataset.schema.numeric == ("n0", "n1")
    table = pq.read_table(dataset.files("train"))
    assert set(table["t0"].combine_chunks().value_lengths().to_pylist()) == {4}
    assert np.ptp(table["t1"].to_numpy()) == 0
    for name, ids in (("t0", table["t0"].combine_chunks().flatten()), ("t2", table["t2"])):
        assert min(ids.to_pylist()) >= 0
        assert max(ids.to_pylist()) < features[name].num_ids


def test_varied_bags_have_from_none_to_twice_as_many_ids(tmp_path):
    result = _synth(tmp_path / "data", "tables", "--tables", 1, "--lookups", 3, "--numbers", 0, "--varied")
    assert result.exit_code == 0, result.output
    dataset = Dataset(tmp_path / "data")
    assert dataset.schema.categorical[0].max_length == 6
    lengths = pq.read_table(dataset.files("train"))["t0"].combine_chunks().value_lengths().to_numpy()
    assert (lengths.min(), lengths.max()) == (0, 6)
    assert lengths.mean() == pytest.approx(3, abs=0.4)


def test_tables_of_a_model_are_cut_to_the_rows_asked_for(tmp_path):
    result = _synth(tmp_path / "data", "dlrm-v2", "--table-rows", 40)
    assert result.exit_code == 0, result.output
    features = {feature.name: feature for feature in Dataset(tmp_path / "data").schema.categorical}
    shape = model_shape("dlrm-v2")
    assert len(features) == 26
    for place, (rows, lookups) in enumerate(zip(shape.rows, shape.lookups, strict=True)):
        assert features[f"t{place}"].num_ids == min(rows, 40)
        assert features[f"t{place}"].max_length == lookups


def test_blocks_of_wide_rows_are_short_and_the_rows_do_not_depend_on_how_many_there_are():
    shapes = make_shapes(2, 1000, 1000, numbers=48)
    stream = SynthStream(SynthOptions("tables", train_rows=5000, tables=shapes))
    assert stream.block_rows == 2048
    assert [len(stream.block("train", number).labels) for number in range(stream.blocks("train"))] == [
        *(2048, 2048, 904),
    ]
    narrow = SynthStream(SynthOptions("tables", train_rows=10, tables=make_shapes(2, 1000, 2, numbers=1)))
    assert narrow.block_rows == BLOCK_ROWS


def test_bags_move_the_probability_of_a_click():
    shapes = make_shapes(4, 1000, 5, numbers=0)
    stream = SynthStream(SynthOptions("tables", train_rows=BLOCK_ROWS, tables=shapes))
    block = stream.block("train", 0)
    assert block.labels.mean() == pytest.approx(0.256, abs=0.02)
    assert block.probabilities.std() > 0.1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["criteo", "--lookups", "3"], "--lookups is for the source `tables`; criteo has tables of its own"),
        (["avazu", "--varied"], "--varied is for the source `tables`"),
        (["rm1", "--tables", "3"], "--tables is for the source `tables`; rm1 has tables of its own"),
        (["rm1", "--table-rows", "3,4"], "--table-rows of rm1 is one number"),
        (["rm1", "--multi-hot", "2"], "--multi-hot is for criteo and avazu"),
        (["rm1", "--scale", "full"], "--scale is for criteo and avazu"),
        (["rm1", "--tail"], "--tail is for criteo and avazu"),
        (["rm1", "--format", "text"], "rm1 has no text of its own"),
        (
            ["tables", "--table-rows", "many"],
            "--table-rows must be a whole number or several",
        ),
        (["tables", "--table-rows", "2"], "--table-rows must be at least 3, not 2"),
        (["tables", "--lookups", "0"], "--lookups must be at least 1, not 0"),
        (["tables", "--tables", "3", "--lookups", "1,2"], "--lookups has 2 numbers for 3 tables"),
    ],
)
def test_what_does_not_fit_is_one_sentence(arguments, sentence, tmp_path):
    result = _synth(tmp_path / "data", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert sentence in str(result.exception)
    assert list(tmp_path.iterdir()) == []
