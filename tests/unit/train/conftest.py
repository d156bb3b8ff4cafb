"""A small generated data set and recipe that every training test shares."""

import pytest
from typer.testing import CliRunner

from megalith.cli.app import app


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """Criteo-shaped rows: 12,000 to train on, 2,000 each to validate and test."""
    folder = tmp_path_factory.mktemp("small") / "data"
    arguments = ["--rows", "12000", "--valid-rows", "2000", "--test-rows", "2000", "--threads", "1"]
    result = CliRunner().invoke(app, ["data", "synth", "criteo", "--out", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def recipe(small_data, tmp_path):
    """The path of a recipe that trains a small DLRM with dropout, so that the random state matters."""
    path = tmp_path / "small.yaml"
    path.write_text(
        f"""
name: small
data: {{path: {small_data}, batch_size: 256, eval_batch_size: 1000, threads: 1, prefetch: 1}}
model:
  kind: dlrm
  dim: 4
  bottom: {{layers: [16]}}
  top: {{layers: [16], dropout: 0.1}}
train: {{epochs: 2, log_every: 7, eval_every: 20, checkpoint_every: 10, window_samples: 999, tensorboard: no}}
"""
    )
    return path
