"""Scores of Criteo, Avazu and libFM text, with labels and without; and of the same rows as tables."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from scored_runs import Place, eval_scores, predicted, prepared, trained

import megalith as mg
from megalith.core.errors import ConfigError, DataError
from megalith.data.readers import AVAZU, CRITEO


def criteo_lines(count, seed):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        numbers = ["" if draw.random() < 0.2 else str(draw.integers(-2, 500)) for _ in range(13)]
        texts = ["" if draw.random() < 0.1 else f"{draw.integers(0, 20 + seed):08x}" for _ in range(26)]
        yield "\t".join([str(draw.integers(0, 2)), *numbers, *texts])


def avazu_lines(count, seed):
    draw = np.random.default_rng(seed)
    yield ",".join(column.name for column in AVAZU.columns)
    for row in range(count):
        rest = ",".join(f"v{value}" for value in draw.integers(0, 9 + seed, 21))
        yield f"id{row},{draw.integers(0, 2)},1410{draw.integers(10, 28)}{draw.integers(10, 24)},{rest}"


def libfm_lines(count, seed):
    draw = np.random.default_rng(seed)
    for _ in range(count):
        yield " ".join(
            [str(draw.integers(0, 2)), *(f"{value}:1" for value in draw.integers(0, 30 + seed, 3))]
        )


LINES = {"criteo": criteo_lines, "avazu": avazu_lines, "libfm": libfm_lines}
ENDINGS = {"criteo": "tsv", "avazu": "csv", "libfm": "txt"}


@pytest.fixture(scope="module", params=LINES)
def text(request, tmp_path_factory):
    """A run on text of a format, and the lines of its test split."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    files = [folder / f"{split}.{ENDINGS[name]}" for split in ("train", "test")]
    lines = [list(LINES[name](count, seed)) for count, seed in ((900, 1), (450, 2))]
    for path, own in zip(files, lines, strict=True):
        path.write_text("\n".join(own) + "\n")
    prepared(folder, files[:1], files[1:], source=name)
    numbers = "bottom: {layers: [8]}, " if name == "criteo" else ""
    kind = "dlrm" if name == "criteo" else "wide_deep"
    model = f"kind: {kind}, dim: 4, {numbers}" + ("top: {layers: [8]}" if numbers else "mlp: {layers: [8]}")
    trained(folder, model)
    scores = eval_scores(folder, folder / "eval.parquet")["score"].to_numpy()
    return name, Place(folder, files[1], scores), lines[1]


def test_text_with_labels_and_without(text, tmp_path):
    name, place, lines = text
    run, out = place.folder / "run", tmp_path / "out.parquet"
    np.testing.assert_array_equal(predicted(run, place.test, out=out)["score"], place.scores)
    delimiter = {"criteo": "\t", "avazu": ",", "libfm": " "}[name]
    label = 1 if name == "avazu" else 0
    bare = [delimiter.join(np.delete(line.split(delimiter), label)) for line in lines]
    unlabelled = tmp_path / f"bare.{ENDINGS[name]}"
    unlabelled.write_text("\n".join(bare) + "\n")
    np.testing.assert_array_equal(predicted(run, unlabelled, out=out)["score"], place.scores)


def test_columns_of_text_are_kept_as_they_stand(text, tmp_path):
    name, place, lines = text
    run, out = place.folder / "run", tmp_path / "out.parquet"
    if name == "libfm":
        with pytest.raises(ConfigError, match="columns of libfm text have no names"):
            predicted(run, place.test, out=out, keep=("f0",))
        return
    kept = {"criteo": "C3", "avazu": "id"}[name]
    position = [column.name for column in (CRITEO if name == "criteo" else AVAZU).columns].index(kept)
    expected = [line.split("\t" if name == "criteo" else ",")[position] for line in lines[name == "avazu" :]]
    found = predicted(run, place.test, out=out, keep=(kept,))
    assert found[kept].to_pylist() == expected
    with pytest.raises(ConfigError, match=f"--keep names 'C33', which is no column of {name}"):
        predicted(run, place.test, out=out, keep=("C33",))


def test_a_bad_line_is_named(text, tmp_path):
    name, place, lines = text
    bad = tmp_path / f"bad.{ENDINGS[name]}"
    bad.write_text("\n".join([*lines[:20], "no such row"]) + "\n")
    with pytest.raises(DataError, match=r"bad\.\w+, line 21 .*; correct it and run again"):
        predicted(place.folder / "run", bad, out=tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == [bad.name]


def test_the_same_rows_as_a_table(text, tmp_path):
    name, place, lines = text
    if name == "libfm":
        columns = {f"f{at}": [int(line.split()[1 + at].split(":")[0]) for line in lines] for at in range(3)}
        frame = pa.table(columns)
    else:
        names = [column.name for column in (CRITEO if name == "criteo" else AVAZU).columns]
        cells = [line.split("\t" if name == "criteo" else ",") for line in lines[name == "avazu" :]]
        frame = pa.table({key: [row[at] or None for row in cells] for at, key in enumerate(names)})
    run = mg.load_run(place.folder / "run")
    # Numbers of text and of tables are transformed alike, up to the rounding of a logarithm.
    np.testing.assert_allclose(run.predict(frame), place.scores, rtol=1e-6)
    np.testing.assert_allclose(run.predict(frame.to_pandas()), place.scores, rtol=1e-6)
    if name == "avazu":
        whole = frame.set_column(2, "hour", pa.array([int(text) for text in frame["hour"].to_pylist()]))
        np.testing.assert_array_equal(run.predict(whole), place.scores)
        wrong = frame.set_column(2, "hour", pa.array(["14109999"] * len(frame)))
        with pytest.raises(DataError, match="row 1: column 'hour' holds '14109999', which is not an hour"):
            run.predict(wrong)
