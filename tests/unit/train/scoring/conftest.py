"""A run that every test of scoring shares."""

import pytest
from scored_runs import make_place


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return make_place(tmp_path_factory.mktemp("scored"))
