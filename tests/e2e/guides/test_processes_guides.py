"""The guide to many processes is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guide_pages import run_guide


@pytest.mark.slow
def test_the_guide_to_many_processes_is_true(tmp_path: Path) -> None:
    run_guide("many-processes.md", tmp_path)
    scores = [
        json.loads((tmp_path / f"runs/{name}/evaluation-valid.json").read_text()) for name in ("one", "two")
    ]
    assert abs(scores[0]["log_loss"] - scores[1]["log_loss"]) < 1e-5
    for name in ("zionex.html", "runs/two/trace.json", "runs/two/plan.json"):
        assert (tmp_path / name).stat().st_size > 1000
