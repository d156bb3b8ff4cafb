"""Scores of logits: the same bits wherever a row stands, and files that appear when they are complete."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from megalith.core.errors import ConfigError, DataError
from megalith.metrics.scores import scores_of
from megalith.train.evaluation.score_file import ScoreFile


def test_a_score_does_not_depend_on_the_place_of_its_row():
    logits = torch.randn(1003, generator=torch.Generator().manual_seed(1)) * 4
    scores = scores_of(logits)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, torch.sigmoid(logits).numpy(), rtol=3e-7)
    for size in (1, 7, 16, 100):
        parts = [scores_of(part) for part in logits.split(size)]
        np.testing.assert_array_equal(np.concatenate(parts), scores)
    np.testing.assert_array_equal(scores_of(torch.stack([logits, logits], 1)[:, 0]), scores)
    assert scores_of(torch.tensor([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def write_all(path, scores, *columns):
    with ScoreFile(path) as file:
        for each in columns:
            file.write(scores, pa.table(each))


def test_columns_and_types_are_those_of_the_first_rows(tmp_path):
    path, scores = tmp_path / "scores.parquet", np.array([0.25], np.float32)
    with ScoreFile(path, "p") as file:
        file.write(scores, pa.table({"id": [1]}))
        file.write(scores, pa.table({"id": pa.array([2], pa.int8())}))
    assert pq.read_table(path).to_pydict() == {"id": [1, 2], "p": [0.25, 0.25]}
    assert (file.rows, file.mean) == (2, 0.25)
    with pytest.raises(DataError, match="changes its type between files"):
        write_all(path, scores, {"id": [1]}, {"id": ["a"]})
    with pytest.raises(ConfigError, match="name the scores' with --column"):
        write_all(path, scores, {"score": [1]})
    assert pq.read_table(path).num_rows == 2
    assert list(tmp_path.iterdir()) == [path]
