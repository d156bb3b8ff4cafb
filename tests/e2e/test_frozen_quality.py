"""benchmarks/frozen_quality.py as a user runs it, on few rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from commands import run

ROOT = Path(__file__).parents[2]
SMALL = ("--rows", 8000, "--test-rows", 2000, "--scale", 0.001, "--dim", 8, "--dram", "4MiB")


@pytest.mark.slow
def test_every_kind_of_run_is_frozen_and_compared(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "frozen_quality.py"
    done = run([sys.executable, script, "--workdir", tmp_path, "--out", tmp_path / "out.json", *SMALL])
    exports = json.loads((tmp_path / "out.json").read_text())["results"]["exports"]
    assert [(each["run"], each["tables"], each["dense"]) for each in exports] == [
        ("dense", "int8", "float32"),
        ("dense", "int4", "float32"),
        ("dense", "int8", "int8"),
        ("adaptive", "int8", "float32"),
        ("tiered", "int8", "float32"),
        ("dynamic", "int8", "float32"),
    ]
    assert all(each["samples"] == 2000 for each in exports)
    for each in exports[:3]:
        assert abs(each["size_error"]) <= 0.005
    # So few rows teach nothing: whether quality holds is not asked here, only that the exit code says so.
    held = all(all(each["meets"].values()) for each in exports)
    assert done.returncode == (0 if held else 1), done.stderr
    assert len(done.stdout.splitlines()) == 6
