"""A server of two models in a process of its own, for all tests of this folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from commands import started
from networked_models import small_model, write_model


class RunningServer(NamedTuple):
    """Where a server listens, and the process."""

    http: int
    grpc: int
    process: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"


@contextmanager
def running(*arguments: Any) -> Iterator[RunningServer]:
    """`megalith serve ...` on free ports, ready for requests."""
    import subprocess

    command = [sys.executable, "-m", "megalith", "serve", *arguments, "--http", "0", "--grpc", "0", "--json"]
    with started(command, stdout=subprocess.PIPE) as process:
        line = process.stdout.readline()
        assert line, "the server did not start"
        ports = json.loads(line)
        yield RunningServer(ports["http"], ports["grpc"], process)


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
