"""Ids of dynamic tables out of a run and into another one, by the commands; files that are refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from megalith.cli.app import app
from megalith.core.errors import ConfigError, DataError, MegalithError
from megalith.core.files import read_jsonl
from megalith.data.prepare import PrepareOptions, prepare
from megalith.embeddings.row_block import PartSpec
from megalith.train.ids.export import ExportRequest, export_table
from megalith.train.ids.id_file import IdFile
from megalith.train.ids.stats import id_statistics
from megalith.train.recipe import load_recipe
from megalith.train.run.folder import RunFolder
from megalith.train.trainer import Trainer

DIM = 4
STORES = {
    "*": {
        "kind": "dynamic",
        "bound": 90,
        "eviction": {"kind": "score", "half_life": 7},
        "expiry": {"seconds": 3000, "interval": 5},
    }
}


def command(*words):
    return CliRunner().invoke(app, ["ids", *map(str, words)])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data set of integers and texts with event times, a recipe, and a trained run."""
    folder = tmp_path_factory.mktemp("ids")
    draw = np.random.default_rng(1)
    rows = 2000
    texts = [f"{word}" for word in draw.integers(0, 150, rows)]
    texts = ["a longer text than a key holds" if text == "7" else text for text in texts]
    log = pa.table(
        {
            "label": pa.array(draw.integers(0, 2, rows), pa.float32()),
            "when": pa.array(1_700_000_000 + 10 * np.arange(rows)),
            "x": pa.array(draw.normal(size=rows), pa.float32()),
            "user": pa.array(draw.integers(-100, 100, rows) * 10**15),
            "page": pa.array(texts),
        }
    )
    pq.write_table(log, folder / "log.parquet")
    prepare(
        PrepareOptions(
            source="parquet",
            files=(folder / "log.parquet",),
            out=folder / "data",
            raw=("all",),
            event_time="when",
            threads=1,
        )
    )
    (folder / "recipe.yaml").write_text(
        f"""
name: ids
data: {{path: {folder / "data"}, batch_size: 50, threads: 1, shuffle: no}}
model: {{kind: dlrm, dim: {DIM}, bottom: {{layers: [8]}}, top: {{layers: [8]}}}}
embeddings: {{optimizer: {{kind: adam, lr: 0.01}}, stores: {json.dumps(STORES)}}}
train: {{epochs: 1, log_every: 10, tensorboard: no}}
"""
    )
    Trainer(load_recipe(str(folder / "recipe.yaml")), folder / "run").train()
    return folder


def rows_of(trainer, table):
    """By id all parts of its row, scores in uses."""
    embeddings = trainer.learner.embeddings
    (store,) = embeddings.stores.dynamic
    unit = store.ids.tables[0].eviction.score_clock(store.ids.batch).weight
    found = {}
    for block in embeddings.table_states()[table].blocks(1 << 20):
        parts = {name: part.tolist() for name, part in block.parts.items()}
        for at, id_ in enumerate(block.ids.tolist()):
            found[id_] = {name: part[at] for name, part in parts.items()}
            found[id_]["score"] = float(torch.tensor(found[id_]["score"] / unit, dtype=torch.float32))
    return found


def resumed(folder, *overrides):
    trainer = Trainer(load_recipe(str(folder / "config.yaml"), overrides), folder)
    trainer.resume()
    return trainer


def test_an_export_has_what_the_table_has(place, tmp_path):
    out = tmp_path / "users.parquet"
    result = command("export", place / "run", "user", "--state", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    content, kept = pq.read_table(out), rows_of(resumed(place / "run"), "user")
    assert json.loads(result.output)["ids"] == len(kept) == content.num_rows > 50
    columns = content.to_pydict()
    # Integers are their own values.
    assert list(columns) == ["id", "score", "last_batch", "event_time", "vector", "first", "second"]
    names = {"weight": "vector", "last": "last_batch", "time": "event_time"}
    for at, id_ in enumerate(columns["id"]):
        for part, value in kept[id_].items():
            assert columns[names.get(part, part)][at] == pytest.approx(value, rel=1e-6)


def test_texts_are_shown_where_their_id_holds_them(place, tmp_path):
    export_table(ExportRequest(place / "run", "page", tmp_path / "pages.parquet"))
    values = pq.read_table(tmp_path / "pages.parquet").column("value").to_pylist()
    assert len(values) - values.count(None) > 50
    assert all(value is None or value.isdigit() for value in values)


@pytest.mark.parametrize("key", ["id", "value"])
def test_an_import_begins_a_run_and_training_goes_on_from_it(place, tmp_path, key):
    """By ids, and by values as another system knows them: the same rows."""
    out, run = tmp_path / "pages.parquet", tmp_path / "run"
    export_table(ExportRequest(place / "run", "page", out, state=True))
    table = pq.read_table(out)
    if key == "value":
        # Of a text that its id does not hold, only whoever has the text can say it.
        known = [value or "a longer text than a key holds" for value in table.column("value").to_pylist()]
        table = table.drop_columns(["id"]).set_column(0, "value", pa.array(known))
        pq.write_table(table, out)
    result = command("import", place / "recipe.yaml", "page", out, "--out", run)
    assert result.exit_code == 0, result.output
    assert f"{table.num_rows} of {table.num_rows} ids" in result.output
    ours, theirs = rows_of(resumed(run), "page"), rows_of(resumed(place / "run"), "page")
    for row in [*ours.values(), *theirs.values()]:
        # Batches of another run do not lie ahead of this one's.
        row["last"] = 1
    assert ours == theirs
    (noted,) = read_jsonl(RunFolder(run).imports)
    assert (noted["step"], noted["table"], noted["kept"]) == (0, "page", table.num_rows)
    trainer = resumed(run)
    assert trainer.train()["finished"]


def test_an_import_into_a_run_keeps_the_best_and_is_saved_as_its_step(place, tmp_path):
    Trainer(load_recipe(str(place / "recipe.yaml")), tmp_path / "run").train()
    before = rows_of(resumed(tmp_path / "run"), "user")
    ids = np.arange(5000, 5200)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(200.0 * DIM)), DIM)
    scores = pa.array([1e6 if id_ % 2 else 1e-6 for id_ in ids])
    pq.write_table(pa.table({"id": ids, "vector": vectors, "score": scores}), tmp_path / "new.parquet")
    result = command("import", tmp_path / "run", "user", tmp_path / "new.parquet", "--json")
    told = json.loads(result.output)
    after = rows_of(resumed(tmp_path / "run"), "user")
    brought = sorted(set(after) - set(before))
    assert (told["ids"], told["kept"], told["ids_after"]) == (200, len(brought), len(after))
    assert len(after) <= 90 < len(before) + 100
    odd = [id_ for id_ in brought if id_ % 2]
    assert len(odd) > 2 * (len(brought) - len(odd))
    for id_ in brought:
        assert after[id_]["weight"] == [float((id_ - 5000) * DIM + column) for column in range(DIM)]
        assert after[id_]["first"] == [0.0] * DIM
    assert RunFolder(tmp_path / "run").finished() is not None


def written(folder, **columns):
    whole = {
        "id": pa.array([1, 2, 3]),
        "vector": pa.array([[0.5] * DIM] * 3, pa.list_(pa.float32())),
        "score": pa.array([1.0] * 3),
        **columns,
    }
    pq.write_table(pa.table({name: column for name, column in whole.items() if column is not None}), folder)
    return folder


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"vector": pa.array([[0.5] * 3] * 3)}, r"row 0: `vector` has 3 numbers, and table 'user' has dim 4"),
        ({"vector": pa.array([[0.5] * 4, [0.5] * 4, [float("nan")] * 4])}, "row 2: `vector` holds a number"),
        ({"vector": pa.array([[0.5] * 4, None, [0.5] * 4])}, "row 1: `vector` is missing"),
        ({"vector": pa.array([[0.5, 0.5, None, 0.5]] * 3)}, "row 0: `vector` holds a number that is not"),
        ({"vector": pa.array([0.5] * 3)}, "column 'vector' has type double and must hold lists"),
        ({"vector": None}, "has no column `vector`"),
        ({"id": None}, "has no column `id` or `value`"),
        ({"id": pa.array([1, 2, 1])}, "Id 1 is imported into table 'user' twice"),
        ({"id": pa.array([1, None, 1])}, "row 1: `id` is missing"),
        ({"id": pa.array(["a", "b", "c"])}, "column 'id' has type string; ids are 64-bit integers"),
        ({"score": pa.array([1.0, -1.0, 1.0])}, "row 1: `score` is below 0"),
        ({"score": pa.array([1.0, 1.0, float("inf")])}, "row 2: `score` is not a finite number"),
        ({"event_time": pa.array([1, 2, -3])}, "row 2: `event_time` is not from 0 to 4294967295"),
    ],
)
def test_files_that_cannot_be_imported_leave_no_run(place, tmp_path, columns, message):
    file = written(tmp_path / "bad.parquet", **columns)
    result = command("import", place / "recipe.yaml", "user", file, "--out", tmp_path / "run")
    assert isinstance(result.exception, DataError)
    assert message.replace("\\", "") in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_ids_twice_in_different_pieces_are_found(place, tmp_path, monkeypatch):
    monkeypatch.setattr("megalith.train.ids.id_file.piece_rows", lambda dim: 2)
    file = written(tmp_path / "bad.parquet", id=pa.array([1, 2, 1]))
    parts = {"weight": PartSpec(torch.float32, "element")}
    assert [len(block.ids) for block in IdFile(file, "user", DIM, parts).blocks()] == [2, 1]
    result = command("import", place / "recipe.yaml", "user", file, "--out", tmp_path / "run")
    assert "Id 1 is imported into table 'user' twice" in str(result.exception)


def test_vectors_beyond_half_precision_are_refused(tmp_path):
    file = written(tmp_path / "bad.parquet", vector=pa.array([[0.5] * DIM, [1e5] * DIM, [0.5] * DIM]))
    assert len(list(IdFile(file, "t", DIM, {"weight": PartSpec(torch.float32, "element")}).blocks())) == 1
    with pytest.raises(DataError, match="row 1: `vector` holds a number that is not finite"):
        list(IdFile(file, "t", DIM, {"weight": PartSpec(torch.float16, "element")}).blocks())


def test_what_is_not_there_is_named(place, tmp_path):
    with pytest.raises(ConfigError, match=r"has no dynamic table 'users'; .*user"):
        export_table(ExportRequest(place / "run", "users", tmp_path / "out.parquet"))
    with pytest.raises(MegalithError, match="has no checkpoint of step 3; it has: 40"):
        export_table(ExportRequest(place / "run", "user", tmp_path / "out.parquet", step=3))
    assert not (tmp_path / "out.parquet").exists()
    other = command("import", place / "run", "users", tmp_path / "none.parquet")
    assert "has no dynamic table 'users'" in str(other.exception)
    wrong = command("import", place / "run", "user", tmp_path / "none.parquet")
    assert "none.parquet does not exist" in str(wrong.exception)


def test_statistics_by_table_add_up_to_those_of_all(place):
    found = id_statistics(place / "run")
    tables = dict(found["tables"])
    total = tables.pop("all")
    assert list(tables) == ["user", "page"]
    assert (found["step"], total["lookups"]) == (40, 2 * 2000)
    for key in ("ids", "bound", "lookups", "hits", "admitted", "evicted", "expired_by_seconds"):
        assert sum(own[key] for own in tables.values()) == total[key]
    left = total["evicted"] + total["shrunk"] + sum(total[key] for key in total if key.startswith("expired"))
    assert (
        total["admitted"] - left
        == total["ids"]
        == len(rows_of(resumed(place / "run"), "user")) + len(rows_of(resumed(place / "run"), "page"))
    )
    assert total["evicted"] > 0 < total["expired_by_seconds"]
    assert 0 < total["hit_rate"] < 1
    shown = command("stats", place / "run").output
    assert f"{total['evicted']:,}" in shown
