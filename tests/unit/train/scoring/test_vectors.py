"""Vectors of tables out to files: those of the model, beside the values that they stand for."""

import json
import shutil
from collections import Counter

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scored_runs import make_place, prepared, trained

import megalith as mg
from commands import megalith, sentence_of
from megalith.core.errors import ConfigError
from megalith.train.checkpoints import open_learner
from megalith.train.run.folder import RunFolder
from megalith.train.scoring import vectors as vectors_module


@pytest.mark.parametrize("pieces", [7, 8192])
def test_vectors_are_the_weights_of_the_model_beside_their_values(place, tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(vectors_module, "_LOOKUP_ROWS", pieces)
    run = RunFolder(place.folder / "run")
    learner, _ = open_learner(run, run.trained_on())
    loaded = mg.load_run(run.folder)
    for table in ("user", "page"):
        found = loaded.embeddings(table)
        weight = learner.embeddings.weight(table)
        np.testing.assert_array_equal(np.array(found["vector"].to_pylist(), np.float32), weight.numpy())
        vocabulary = pq.read_table(run.inputs.folder / "vocabulary" / f"{table}.parquet")
        assert found["value"].to_pylist() == [None, None, *vocabulary["text"].to_pylist()]
        assert None not in found["value"].to_pylist()[2:]
        assert found["id"].to_pylist() == list(range(len(weight)))
        assert found["kind"].to_pylist() == ["missing", "unknown", *["value"] * (len(weight) - 2)]


def test_long_values_have_the_vectors_that_raw_rows_look_up(place):
    """Rows and vectors meet by the text: what `value` names is what the transform gives that id."""
    loaded = mg.load_run(place.folder / "run")
    found = loaded.embeddings("page")
    ids = dict(zip(found["value"].to_pylist(), found["id"].to_pylist(), strict=True))
    pages = pq.read_table(place.folder / "train.parquet")["page"].to_pylist()
    page_ids = pq.read_table(place.folder / "data" / "train")["page"].to_pylist()
    assert any(len(page) > 8 for page in ids if page)
    assert [ids.get(page, 1) for page in pages] == page_ids


def test_features_with_one_vocabulary_have_long_values_each(tmp_path):
    draw = np.random.default_rng(0)
    items = [f"Artikel für Küche Nr. {number}" for number in draw.integers(0, 40, 400)]
    lists = [[f"Artikel für Küche Nr. {n}" for n in draw.integers(30, 50, row % 4)] for row in range(400)]
    columns = {"label": pa.array(draw.integers(0, 2, 400), pa.int8()), "item": items, "history": lists}
    parts = [pa.table(columns).slice(start, 200) for start in (0, 200)]
    for number, part in enumerate(parts):
        pq.write_table(part, tmp_path / f"{number}.parquet", row_group_size=50)
    files = tuple(tmp_path / f"{number}.parquet" for number in range(2))
    prepared(tmp_path, files, (), share=("item,history",), min_count=12, threads=4)
    trained(tmp_path)
    found = mg.load_run(tmp_path / "run").embeddings("item")
    counts = Counter([*items, *(value for values in lists for value in values)])
    expected = {value for value, count in counts.items() if count >= 12}
    assert 0 < len(expected) < len(counts)
    for feature in ("item", "history"):
        assert set(found[feature].to_pylist()[2:]) == expected
        assert found[feature].to_pylist()[:2] == [None, None]
    with pytest.raises(ConfigError, match="'history'; feature 'history' reads table 'item', so ask for"):
        mg.load_run(tmp_path / "run").embeddings("history")


def test_data_of_older_versions_has_null_for_long_values(tmp_path):
    folder = make_place(tmp_path).folder
    path = folder / "data" / "vocabulary" / "page.parquet"
    table = pq.read_table(path)
    short = [text if len(text) <= 8 else None for text in table["text"].to_pylist()]
    pq.write_table(table.set_column(3, "text", pa.array(short, pa.string())), path)
    shutil.rmtree(folder / "run")
    trained(folder)
    assert mg.load_run(folder / "run").embeddings("page")["value"].to_pylist() == [None, None, *short]


def test_the_command_writes_every_format(place, tmp_path):
    run = place.folder / "run"
    expected = mg.load_run(run).embeddings("user")
    for ending in ("parquet", "csv", "arrow"):
        out = tmp_path / f"users.{ending}"
        done = megalith("embeddings", run, "user", "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rows"] == len(expected)
    assert pq.read_table(tmp_path / "users.parquet").equals(expected)
    flat = pandas.read_csv(tmp_path / "users.csv", keep_default_na=False)
    assert list(flat.columns) == ["id", "kind", "value", "vector0", "vector1", "vector2", "vector3"]
    numbers = flat[[f"vector{place}" for place in range(4)]].to_numpy(np.float32)
    np.testing.assert_array_equal(numbers, np.array(expected["vector"].to_pylist(), np.float32))
    done = megalith("embeddings", run, "users", "--out", tmp_path / "none.csv")
    assert "has no table 'users'; did you mean 'user'?" in sentence_of(done)
    assert not (tmp_path / "none.csv").exists()
