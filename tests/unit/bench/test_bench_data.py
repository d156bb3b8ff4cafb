"""`megalith bench data` as a user runs it, on few rows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commands import megalith, unwrapped


def bench_data(*arguments: str) -> subprocess.CompletedProcess[str]:
    return megalith("bench", "data", "--rows", 3000, "--repeats", 2, *arguments)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def content(workdir: Path) -> dict[str, Any]:
    out = workdir / "result.json"
    done = bench_data("--workdir", str(workdir), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert json.loads(out.read_text()) == printed
    return printed


def test_preparing_and_loading_are_measured_beside_their_peers(content: dict[str, Any]) -> None:
    results = content["results"]
    assert results["prepare"]["megalith data prepare"]["rows_per_second"] > 0
    assert results["prepare"]["megalith data prepare"]["max_resident_bytes"] > 0
    assert len(results["loader"]["candidates"]) == 3
    for measured in results["loader"]["candidates"].values():
        assert len(measured["seconds"]) == 2
        assert measured["samples_per_second"] > 0
    assert content["machine"]["cores"] >= 1


def test_a_second_run_reuses_the_data_and_prints_a_table(workdir: Path, content: dict[str, Any]) -> None:
    done = bench_data("--workdir", str(workdir), "--only", "loader")
    assert done.returncode == 0, done.stderr
    assert "generating" not in done.stderr
    assert "megalith, shuffled, batch 2048" in unwrapped(done.stdout)
