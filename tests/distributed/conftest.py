"""Data and recipes that the tests of several processes share."""

import pytest
from small_runs import make_data, make_recipe


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "data"
    make_data(folder)
    return folder


@pytest.fixture
def tiny_recipe(tiny_data, tmp_path):
    return make_recipe(tmp_path / "tiny.yaml", tiny_data)
