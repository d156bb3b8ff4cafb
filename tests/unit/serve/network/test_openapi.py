"""The OpenAPI description is true: schemathesis finds no answer that it does not describe."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from networked_models import small_model, write_model
from running_server import running


def test_the_description_lists_every_route_and_model(server: Any) -> None:
    from megalith.serve.http.routes import ROUTES

    with urllib.request.urlopen(server.url + "/v2/openapi.json") as response:
        description = json.load(response)
    for route in ROUTES:
        described = [
            path
            for path, methods in description["paths"].items()
            if route.method.lower() in methods and route.pattern.fullmatch(path)
        ]
        assert described, route
    assert sorted(description["components"]["schemas"]["ModelName"]["enum"]) == ["other", "small"]


@pytest.mark.slow
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install 'megalith[test]'")
    write_model(tmp_path / "small", small_model())
    with running(tmp_path / "small", "--cards", "0", "--max-request-mb", "8") as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v2/openapi.json"),
                # Whether a model can take a request is more than a schema can say.
                *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
                *("--max-examples", "60", "--seed", "1", "--phases", "examples,coverage,fuzzing"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert server.process.poll() is None
