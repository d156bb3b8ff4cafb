"""The guides to many processes and machines, and to watching them, are true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guide_pages import run_guide
from namespaces import can_make_namespaces


@pytest.mark.slow
def test_the_guide_to_many_processes_is_true(tmp_path: Path) -> None:
    run_guide("many-processes.md", tmp_path)
    scores = [
        json.loads((tmp_path / f"runs/{name}/evaluation-valid.json").read_text()) for name in ("one", "two")
    ]
    assert abs(scores[0]["log_loss"] - scores[1]["log_loss"]) < 1e-5
    for name in ("zionex.html", "runs/two/trace.json", "runs/two/plan.json"):
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.slow
def test_the_guide_to_two_machines_is_true(tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("making network namespaces needs root and iproute2")
    (tmp_path / "examples").symlink_to(Path(__file__).parents[3] / "examples")
    run_guide("two-machines.md", tmp_path)
    assert (tmp_path / "journey/compare.html").stat().st_size > 1000


@pytest.mark.slow
def test_the_guide_to_watching_a_run_is_true(tmp_path: Path) -> None:
    run_guide("watch-a-run.md", tmp_path, ports=("9400",))
    metrics = (tmp_path / "metrics.txt").read_text()
    assert 'megalith_train_anomalies_total{anomaly="dead table"}' in metrics
    assert "Where a step" in (tmp_path / "watched.html").read_text()
    assert "Who waits for whom" in (tmp_path / "two.html").read_text()
