"""A small generated data set and recipe that every training test shares."""

import pytest
from small_recipes import trained, write_recipe
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
    return write_recipe(tmp_path / "small.yaml", small_data)


@pytest.fixture(scope="session")
def whole(small_data, tmp_path_factory):
    """A run of the recipe from its beginning to its end, in one go."""
    folder = tmp_path_factory.mktemp("whole")
    return trained(write_recipe(folder / "small.yaml", small_data), folder / "run")
