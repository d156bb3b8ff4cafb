"""The guide to checkpoints is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from guide_pages import run_guide
from megalith.checkpoint.inspection import kept_steps, verified
from megalith.checkpoint.store import CheckpointStore


@pytest.mark.slow
def test_the_guide_to_checkpoints_is_true(tmp_path: Path) -> None:
    run_guide("checkpoints.md", tmp_path)
    runs = tmp_path / "runs"
    stores = {name: CheckpointStore(runs / name / "checkpoints") for name in ("exact", "rounded")}
    damaged = verified(CheckpointStore(runs / "damaged/checkpoints"))
    assert sum(len(each.damaged) for each in damaged) == 1
    assert all(each.can_be_restored for store in stores.values() for each in verified(store))
    assert 40 in stores["exact"].steps()
    newest = kept_steps(stores["rounded"])[-1]
    assert (newest.step, newest.kind) == (40, "baseline")
