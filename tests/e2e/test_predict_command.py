"""`megalith predict` as a process, from another folder and without the data: what it prints and leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest

from commands import megalith, megalith_from_nothing, run, sentence_of
from megalith.train.evaluation.score_file import ScoreFile

ROWS = 400
PREDICT_FROM_PYTHON = """
import pandas
import megalith as mg
run = mg.load_run("run")
frame = pandas.read_parquet("rows.parquet")
print(run.predict(frame).tobytes().hex())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on Criteo text and its scores of split test; the data it was trained on is gone."""
    folder = tmp_path_factory.mktemp("predict")
    (folder / "recipe.yaml").write_text(
        "name: small\n"
        "data: {path: data, batch_size: 200, eval_batch_size: 150, threads: 1}\n"
        "model: {kind: dlrm, dim: 4, bottom: {layers: [8]}, top: {layers: [8]}}\n"
        "train: {epochs: 1, log_every: 2, tensorboard: no}\n"
    )
    sizes = ("--rows", 1200, "--valid-rows", 0, "--test-rows", ROWS, "--threads", 1)
    raw, data = folder / "raw", folder / "data"
    here = Path.cwd()
    os.chdir(folder)
    try:
        for words in (
            ("data", "synth", "criteo", *sizes, "--format", "text", "--out", raw),
            ("data", "prepare", "criteo", raw / "train.tsv", "--test", raw / "test.tsv", "--out", data),
            ("train", "recipe.yaml", "--out", "run"),
            ("eval", "run", "--split", "test", "--predictions", "eval.parquet"),
        ):
            done = megalith(*words)
            assert done.returncode == 0, done.stderr
    finally:
        os.chdir(here)
    shutil.rmtree(data)
    return folder


@pytest.fixture
def expected(place: Path) -> np.ndarray:
    return pq.read_table(place / "eval.parquet")["score"].to_numpy()


def test_one_object_is_printed_and_the_scores_are_those_of_eval(
    place: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    words = ("predict", place / "run", place / "raw" / "test.tsv", "--out", out, "--keep", "label,C1")
    done = megalith_from_nothing(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rows"], result["batch"]) == (ROWS, 150)
    table = pq.read_table(out)
    assert table.column_names == ["label", "C1", "score"]
    np.testing.assert_array_equal(table["score"].to_numpy(), expected)
    done = megalith(*words, "--threads", 1, "--checkpoint", "last")
    assert f"{out}: {ROWS} rows at step 6 in " in done.stdout


def test_five_lines_of_python_in_another_folder(place: Path, expected: np.ndarray, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    names = [f"I{number}" for number in range(1, 14)] + [f"C{number}" for number in range(1, 27)]
    cells = [line.split("\t")[1:] for line in (place / "raw" / "test.tsv").read_text().splitlines()]
    pandas.DataFrame(cells, columns=names).to_parquet(tmp_path / "rows.parquet")
    done = run([sys.executable, "-c", PREDICT_FROM_PYTHON], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = np.frombuffer(bytes.fromhex(done.stdout.strip()), np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def at_second_write(act: Callable[[], None]) -> None:
    """Acts when the second batch of scores is about to be written."""
    write, calls = ScoreFile.write, []

    def counted(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            act()
        write(*arguments)  # type: ignore[arg-type]

    ScoreFile.write = counted  # type: ignore[method-assign, assignment]


def signalled(number: int) -> None:
    os.kill(os.getpid(), number)


def full() -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_predict_that_is_killed_leaves_no_output(place: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "scores.csv"
    words = ("predict", place / "run", place / "raw" / "test.tsv", "--out", out)
    done = megalith(*words, first=partial(at_second_write, partial(signalled, number)))
    assert done.returncode == (-9 if number == signal.SIGKILL else 143), done.stderr
    assert not out.exists()
    left = list(tmp_path.iterdir())
    assert len(left) == (number == signal.SIGKILL)
    # The next one clears what a killed one has left.
    assert megalith(*words).returncode == 0
    assert list(tmp_path.iterdir()) == [out]


def test_what_fails_half_way_keeps_the_file_that_was_there(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("old")
    words = ("predict", place / "run", place / "raw" / "test.tsv", "--out", out)
    done = megalith(*words, first=partial(at_second_write, full))
    assert "The disk is full" in sentence_of(done)
    bad = tmp_path / "bad.tsv"
    bad.write_text((place / "raw" / "test.tsv").read_text() + "half a line\n")
    done = megalith("predict", place / "run", bad, "--out", out)
    assert f"{bad}, line {ROWS + 1} has 1 fields instead of 40; correct it" in sentence_of(done)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tsv", "scores.csv"]


def test_a_vocabulary_that_is_damaged_is_named(place: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(place / "run", tmp_path / "run")
    (copy / "inputs" / "vocabulary" / "C5.parquet").write_bytes(b"PAR1")
    done = megalith("predict", copy, place / "raw" / "test.tsv", "--out", tmp_path / "scores.csv")
    assert "C5.parquet is damaged or missing; copy it from" in sentence_of(done)
