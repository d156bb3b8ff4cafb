"""Scores of raw rows are those of `megalith eval` to the last bit, whatever brings the rows."""

import shutil

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from scored_runs import TEST_ROWS, eval_scores, make_place, predicted, prepared, trained

import megalith as mg
from megalith.core.errors import CheckpointError, ConfigError, DataError
from megalith.data.raw import batches as raw_batches
from megalith.data.raw import record_files
from megalith.train.scoring.predict import PredictRequest, predict_run


def table(place):
    return pq.read_table(place.test).drop(["label"])


def same(found, place):
    np.testing.assert_array_equal(np.asarray(found), place.scores)
    return True


def test_eval_writes_scores_and_labels_in_the_order_of_rows(place, tmp_path):
    found = eval_scores(place.folder, tmp_path / "out.parquet")
    assert found.column_names == ["label", "score"]
    assert found["label"].equals(pq.read_table(place.test)["label"])
    assert found["score"].type == pa.float32()
    assert len(set(place.scores.tolist())) > 100


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "arrow", "feather", "arrows"])
def test_files_of_raw_columns_without_labels(place, tmp_path, ending):
    unlabelled, path = table(place), tmp_path / f"in.{ending}"
    if ending == "parquet":
        pq.write_table(unlabelled, path, row_group_size=97)
    elif ending.startswith("csv"):
        with pa.output_stream(str(path), compression="gzip" if ending.endswith("gz") else None) as stream:
            pyarrow.csv.write_csv(unlabelled, stream)
    elif ending == "feather":
        pyarrow.feather.write_feather(unlabelled, path, chunksize=50)
    else:
        make = pa.ipc.new_file if ending == "arrow" else pa.ipc.new_stream
        with make(str(path), unlabelled.schema) as writer:
            writer.write_table(unlabelled, 50)
    assert same(predicted(place.folder / "run", path, out=tmp_path / "out.parquet")["score"], place)


def test_a_prepared_split_and_files_one_after_the_other(place, tmp_path):
    run, out = place.folder / "run", tmp_path / "out.parquet"
    found = predicted(run, place.folder / "data", out=out, split="test", keep=("label", "user"))
    assert same(found["score"], place)
    assert found.column_names == ["label", "user", "score"]
    assert found["label"].equals(pq.read_table(place.test)["label"])
    pq.write_table(table(place).slice(0, 250), tmp_path / "a.parquet")
    pyarrow.csv.write_csv(table(place).slice(250), tmp_path / "b.csv")
    assert same(predicted(run, tmp_path / "a.parquet", tmp_path / "b.csv", out=out)["score"], place)


def test_frames_of_every_library(place):
    run = mg.load_run(place.folder / "run")
    raw = table(place)
    frames = [
        raw,
        raw.to_pandas(),
        raw.to_pandas().astype({"page": "category"}),
        polars.from_arrow(raw),
        polars.from_arrow(raw).lazy(),
        raw.to_pydict(),
        {name: column.to_numpy() for name, column in zip(raw.column_names, raw.columns, strict=True)},
        raw.combine_chunks().to_batches()[0],
    ]
    for frame in frames:
        found = run.predict(frame)
        assert found.dtype == np.float32
        assert same(found, place)
    # Integers with gaps are floats in pandas.
    assert raw.to_pandas()["user"].dtype == np.float64
    assert len(run.predict(raw.slice(0, 0))) == 0
    assert run.schema.numeric == ("x", "clicks")
    assert run.recipe.name == "scored"
    assert run.step == 15


def test_a_run_works_elsewhere_without_its_data(place, tmp_path, monkeypatch):
    moved = shutil.copytree(place.folder / "run", tmp_path / "moved")
    pq.write_table(table(place), tmp_path / "rows.parquet")
    away = shutil.move(place.folder / "data", tmp_path / "away")
    monkeypatch.chdir(tmp_path)
    try:
        assert same(mg.load_run("moved").predict(pandas.read_parquet("rows.parquet")), place)
        with pytest.raises(DataError, match="is not there any more; name a prepared data set with --data"):
            eval_scores(place.folder, tmp_path / "eval.parquet")
        found = eval_scores(place.folder, tmp_path / "eval.parquet", data=tmp_path / "away")
        assert same(found["score"], place)
    finally:
        shutil.move(away, place.folder / "data")
    assert (moved / "inputs" / "vocabulary" / "page.parquet").exists()


def test_values_that_were_not_seen_are_those_of_the_unknown_row(place):
    run = mg.load_run(place.folder / "run")
    raw = {name: [value] * 2 for name, value in table(place).slice(0, 1).to_pylist()[0].items()}
    scores = run.predict({**raw, "page": ["never seen", "nor this"], "user": [10**12, -(10**12)]})
    assert scores[0] == scores[1]
    vectors = run.embeddings("page").to_pylist()
    assert [row["kind"] for row in vectors[:3]] == ["missing", "unknown", "value"]
    assert scores[0] != run.predict(raw)[0]


def test_kept_columns_names_and_formats(place, tmp_path):
    run, out = place.folder / "run", tmp_path / "out.csv"
    predict_run(PredictRequest(run, (place.test,), out, keep=("request", "user"), column="p"))
    written = pandas.read_csv(out)
    assert list(written.columns) == ["request", "user", "p"]
    assert written["request"].tolist() == [f"r{number}" for number in range(TEST_ROWS)]
    np.testing.assert_array_equal(written["p"].to_numpy(np.float32), place.scores)
    result = predict_run(PredictRequest(run, (place.test,), tmp_path / "out.feather"))
    assert pyarrow.feather.read_table(tmp_path / "out.feather").column_names == ["score"]
    assert result["rows"] == TEST_ROWS
    assert result["mean_score"] == pytest.approx(float(place.scores.mean()), abs=1e-6)


def test_checkpoints_by_step_and_by_name(place, tmp_path):
    run = place.folder / "run"
    for wanted in ("last", "best", 15):
        assert same(predicted(run, place.test, out=tmp_path / "o.parquet", checkpoint=wanted)["score"], place)
    earlier = predicted(run, place.test, out=tmp_path / "o.parquet", checkpoint=10)["score"].to_numpy()
    assert (earlier != place.scores).any()
    assert mg.load_run(run, checkpoint="10").step == 10
    with pytest.raises(CheckpointError, match="has no checkpoint of step 11; it has: 10, 15"):
        mg.load_run(run, 11)
    with pytest.raises(ConfigError, match="--checkpoint newest is neither best nor last nor a step"):
        mg.load_run(run, "newest")


def changed(place, tmp_path, **columns):
    """The raw test rows with some columns replaced, or left out where None."""
    raw = pq.read_table(place.test)
    for name, column in columns.items():
        raw = (
            raw.drop([name]) if column is None else raw.set_column(raw.column_names.index(name), name, column)
        )
    pq.write_table(raw, tmp_path / "bad.parquet")
    return tmp_path / "bad.parquet"


def text_at(row, text):
    return pa.array([text if number == row else "1" for number in range(TEST_ROWS)])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"page": None}, r"bad.parquet has no column 'page', which the model reads; valid names: label, x"),
        ({"x": text_at(3, "abc")}, r"bad.parquet, row 4: column 'x' holds 'abc', which is not a number"),
        ({"user": text_at(650, "u1")}, r"row 651: column 'user' holds 'u1', which is not an integer"),
        (
            {"user": pa.array(np.arange(TEST_ROWS) + 0.5)},
            r"row 1: column 'user' holds '0.5', which is not an i",
        ),
        (
            {"page": pa.array([["a"]] * TEST_ROWS)},
            r"'page' has type list.* and held single categories in train",
        ),
        (
            {"x": pa.array([1.0, np.inf] * (TEST_ROWS // 2))},
            r"bad.parquet, row 2 has inf in column x, which is",
        ),
        (
            {"page": pa.array([1] * TEST_ROWS, pa.timestamp("ms"))},
            r"'page' has type timestamp\[ms\] and held cate",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_named_and_leave_no_output(place, tmp_path, columns, sentence):
    path, out = changed(place, tmp_path, **columns), tmp_path / "out.parquet"
    with pytest.raises(DataError, match=sentence):
        predict_run(PredictRequest(place.folder / "run", (path,), out))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]


def test_a_misspelt_column_is_offered_its_nearest_name(place, tmp_path):
    raw = pq.read_table(place.test)
    frame = raw.rename_columns([{"page": "pages"}.get(name, name) for name in raw.column_names])
    with pytest.raises(DataError, match=r"the frame has no column 'page', .* did you mean 'pages'"):
        mg.load_run(place.folder / "run").predict(frame)
    with pytest.raises(DataError, match="which --keep names; did you mean 'request'"):
        predict_run(
            PredictRequest(place.folder / "run", (place.test,), tmp_path / "o.csv", keep=("requests",))
        )


@pytest.mark.parametrize("content", [b"", b"user,page,x,clicks\n", b"PAR1"])
@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow"])
def test_empty_and_damaged_files_are_refused(place, tmp_path, content, ending):
    path = tmp_path / f"in.{ending}"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"in\.\w+ (is empty|cannot be read)"):
        predict_run(PredictRequest(place.folder / "run", (path,), tmp_path / "out.parquet"))
    assert list(tmp_path.iterdir()) == [path]


def test_what_does_not_fit_together_is_refused(place, tmp_path):
    run, out = place.folder / "run", tmp_path / "out.parquet"
    shutil.copy(place.test, tmp_path / "same.parquet")
    same_file = tmp_path / "same.parquet"
    (tmp_path / "in.txt").write_text("1\t2\n")
    refused = [
        (PredictRequest(run, (same_file,), same_file), "is a file that is read"),
        (PredictRequest(run, (same_file,), tmp_path / "out.txt"), "must end in .parquet, .csv, .arrow"),
        (PredictRequest(run, (same_file,), out, split="test"), "is of a prepared data set, and"),
        (PredictRequest(run, (place.folder / "data",), out), "has several splits .*; name one with --split"),
        (PredictRequest(run, (place.folder / "data",), out, split="tset"), "did you mean 'test'"),
        (PredictRequest(run, (tmp_path / "in.txt",), out), "is no table by its name"),
        (PredictRequest(run, (same_file,), out, keep=("score",)), "the column of scores"),
        (PredictRequest(run, (tmp_path / "gone.csv",), out), "gone.csv does not exist"),
        (PredictRequest(run, (tmp_path,), out), "is a folder; name the files in it"),
    ]
    for request, sentence in refused:
        with pytest.raises((ConfigError, DataError), match=sentence):
            predict_run(request)
    assert not out.exists()
    assert pq.read_table(same_file).num_rows == TEST_ROWS


def test_one_process_scores(place, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="run without torchrun"):
        predict_run(PredictRequest(place.folder / "run", (place.test,), tmp_path / "out.csv"))


def test_memory_holds_some_batches_however_many_rows_there_are(place, tmp_path, monkeypatch):
    """Structurally: pieces of a bounded number of rows, and never more than a few of them at once."""
    monkeypatch.setattr(record_files, "BATCH_ROWS", 64)
    most, sizes = 0, set()

    class Counted(raw_batches.OrderedPipeline):
        def _step(self, number, item):
            nonlocal most
            sizes.add(item.batch.num_rows)
            most = max(most, self._num_read - self._num_taken)
            return super()._step(number, item)

    monkeypatch.setattr(raw_batches, "OrderedPipeline", Counted)
    pq.write_table(pa.concat_tables([table(place)] * 20), tmp_path / "long.parquet")
    found = predicted(
        place.folder / "run", tmp_path / "long.parquet", out=tmp_path / "out.parquet", batch=50, threads=1
    )
    assert found.num_rows == 20 * TEST_ROWS
    assert max(sizes) <= 64
    assert most <= 5
    # Written as it came: a row group holds a batch.
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 20 * TEST_ROWS // 50


def test_lists_hashed_values_and_untransformed_numbers(tmp_path):
    lists = make_place(tmp_path, lists=True, hash_buckets=50, numeric="none", missing_number=-1.5)
    run = mg.load_run(lists.folder / "run")
    assert same(run.predict(table(lists)), lists)
    assert same(run.predict(polars.from_arrow(table(lists))), lists)
    pyarrow.csv.write_csv(table(lists).drop(["tags"]), tmp_path / "flat.csv")
    with pytest.raises(DataError, match="has no column 'tags'"):
        predict_run(PredictRequest(tmp_path / "run", (tmp_path / "flat.csv",), tmp_path / "o.csv"))
    vectors = run.embeddings("tags").to_pylist()
    assert len(vectors) == 52
    assert (vectors[2]["kind"], vectors[2]["value"]) == ("bucket", "0")


def test_buckets_of_numbers(tmp_path):
    place = make_place(tmp_path, numeric="bucket")
    assert same(mg.load_run(place.folder / "run").predict(table(place).to_pandas()), place)


def test_dynamic_tables_take_raw_ids(tmp_path):
    place = make_place(tmp_path, raw=("all",), stores={"*": {"kind": "dynamic", "bound": 200}})
    assert same(predicted(tmp_path / "run", place.test, out=tmp_path / "out.parquet")["score"], place)
    pyarrow.csv.write_csv(table(place), tmp_path / "in.csv")
    assert same(
        predicted(tmp_path / "run", tmp_path / "in.csv", out=tmp_path / "out.parquet")["score"], place
    )
    shutil.rmtree(tmp_path / "data")
    run = mg.load_run(tmp_path / "run")
    assert same(run.predict(table(place).to_pandas()), place)
    assert run.embeddings("user").column_names == ["id", "vector"]
    pages = run.embeddings("page")
    assert pages.column_names == ["id", "value", "vector"]
    assert "p0" in pages["value"].to_pylist()


@pytest.mark.parametrize("source", ["parquet", "arrow"])
def test_features_of_every_kind_are_read_as_they_were_prepared(tmp_path, source):
    """Shared vocabularies, lists cut short, hashed and counted features, vectors of floats, weights."""
    draw = np.random.default_rng(3)

    def frame(count):
        lists = [draw.integers(0, 30, draw.integers(0, 6)).tolist() for _ in range(count)]
        return pa.table(
            {
                "label": draw.integers(0, 2, count),
                "item": draw.integers(0, 30, count),
                "history": lists,
                "city": [f"a city with a long name {n}" for n in draw.integers(0, 9, count)],
                "image": draw.normal(size=(count, 3)).astype(np.float32).tolist(),
                "weight": draw.random(count) + 0.5,
            }
        )

    whole = {"train": frame(900), "test": frame(500)}
    for name, rows in whole.items():
        if source == "parquet":
            pq.write_table(rows, tmp_path / f"{name}.{source}")
        else:
            pyarrow.feather.write_feather(rows, tmp_path / f"{name}.{source}")
    prepared(
        tmp_path,
        (tmp_path / f"train.{source}",),
        (tmp_path / f"test.{source}",),
        source=source,
        share=("item,history",),
        max_length_of={"history": 3},
        hash_buckets_of={"city": 5},
        weight="weight",
    )
    trained(tmp_path)
    expected = eval_scores(tmp_path, tmp_path / "eval.parquet")["score"].to_numpy()
    shutil.rmtree(tmp_path / "data")
    unlabelled = whole["test"].drop(["label", "weight"])
    run = mg.load_run(tmp_path / "run")
    np.testing.assert_array_equal(run.predict(unlabelled), expected)
    np.testing.assert_array_equal(run.predict(unlabelled.to_pandas()), expected)
    np.testing.assert_array_equal(run.predict(polars.from_arrow(unlabelled)), expected)
    items = run.embeddings("item")
    assert items.column_names == ["id", "kind", "item", "history", "vector"]
    assert set(items["item"].to_pylist()[2:]) == {str(number) for number in range(30)}
    assert items["item"].equals(items["history"])
    assert run.embeddings("city")["kind"].to_pylist()[2:] == ["bucket"] * 5
