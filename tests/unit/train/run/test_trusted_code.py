"""A run folder that names code: run for the person who trained with it, refused from a stranger."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import megalith as mg
from megalith.cli.app import app
from megalith.core.errors import ConfigError

MODEL = """
from pathlib import Path

import torch
from torch import nn

from megalith.models.base import ClickModel, ModelConfig

Path(__file__).with_suffix(".ran").touch()


class Mine(ModelConfig):
    def tables(self, features):
        return self.tables_of_dim(features, 2)

    def build(self, inputs):
        return Sum(inputs)


class Sum(ClickModel):
    def __init__(self, inputs):
        super().__init__()
        self.linear = nn.Linear(inputs.num_dense, 1)

    def forward(self, dense, embedded):
        return self.linear(dense).squeeze(1) + embedded.sum(1)
"""


def megalith(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def run(recipe, tmp_path, monkeypatch):
    """A run with a model of one's own, trained here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(MODEL)
    content = yaml.safe_load(recipe.read_text())
    content["model"] = {"kind": "custom", "file": "mine.py", "config": "Mine"}
    recipe.write_text(yaml.safe_dump(content))
    megalith("train", recipe, "train.steps=3", "--out", tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_was_trained_here_needs_no_word(run):
    megalith("eval", run)
    megalith("train", run)


def test_code_in_the_folder_of_a_stranger_does_not_run_unless_it_is_trusted(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    given = tmp_path / "given"
    shutil.copytree(run, given)
    (given / "summary.json").unlink()
    shutil.copy(tmp_path / "mine.py", given / "mine.py")
    content = yaml.safe_load((given / "config.yaml").read_text())
    content["model"]["file"] = "mine.py"
    (given / "config.yaml").write_text(yaml.safe_dump(content))
    for command in ("eval", "train"):
        with pytest.raises(ConfigError, match=r"mine\.py .* read it, then pass --trust-code"):
            megalith(command, given)
    assert not (given / "mine.ran").exists()
    megalith("eval", given, "--trust-code")
    assert (given / "mine.ran").exists()
    megalith("train", given)


def test_scores_of_a_run_with_its_own_code_need_neither_the_code_nor_the_data_beside_it(
    run, small_data, tmp_path, monkeypatch
):
    megalith("eval", run, "--split", "test", "--predictions", tmp_path / "eval.parquet")
    given = shutil.move(run, tmp_path / "given")
    (tmp_path / "mine.py").unlink()
    frame = pq.read_table(small_data / "test" / "part-00000.parquet").drop(["label"]).to_pandas()
    expected = pq.read_table(tmp_path / "eval.parquet")["score"].to_numpy()
    np.testing.assert_array_equal(mg.load_run(given).predict(frame), expected)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(ConfigError, match="read it, then pass --trust-code"):
        mg.load_run(given)
    np.testing.assert_array_equal(mg.load_run(given, trust_code=True).predict(frame), expected)


def test_code_that_has_changed_since_is_asked_about(run):
    (run / "inputs" / "model" / "mine.py").write_text(MODEL + "\n# more\n")
    with pytest.raises(ConfigError, match="or has changed since"):
        megalith("eval", run)


def test_a_run_goes_on_with_the_code_that_it_began_with(run, recipe, tmp_path):
    resume = ("train", recipe, "train.steps=3", "--out", run, "--resume")
    megalith(*resume)
    (tmp_path / "mine.py").write_text("raise RuntimeError")
    with pytest.raises(ConfigError, match="differs from the recipe given"):
        megalith(*resume)
    (tmp_path / "mine.py").unlink()
    shutil.move(run, tmp_path / "elsewhere")
    megalith("eval", tmp_path / "elsewhere")
    megalith("train", tmp_path / "elsewhere")
