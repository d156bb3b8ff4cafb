"""The guide to planning is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from guide_pages import run_guide


@pytest.mark.slow
def test_the_guide_to_planning_is_true(tmp_path: Path) -> None:
    run_guide("explore.md", tmp_path)
    for name in ("step.html", "step.json", "plans/report.html", "megatron-plans/plan-1/megatron.sh"):
        assert (tmp_path / name).stat().st_size > 1000
