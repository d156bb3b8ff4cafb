"""A server of two models in a process of its own, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from networked_models import small_model, write_model
from running_server import RunningServer, running


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model `small` with versions 1 to 3, and model `other`."""
    folder = tmp_path_factory.mktemp("models")
    for version in (1, 2, 3):
        write_model(folder / "small" / str(version), small_model(seed=version))
    write_model(folder / "other", small_model(seed=9, name="other"))
    return folder


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[RunningServer]:
    """Serves the two newest versions of `small`, and `other`."""
    with running(repository, "--cards", "1", "--versions", "2", "--max-request-mb", "8") as found:
        yield found
