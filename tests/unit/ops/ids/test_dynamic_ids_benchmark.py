"""Distinct ids by the million through a bounded map: benchmarks/dynamic_ids.py checks every batch."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "dynamic_ids.py"


@pytest.mark.slow
def test_the_bound_holds_and_no_two_ids_share_a_row():
    sizes = ["--only", "bound", "--ids", "5000000", "--memory", str(128 << 20), "--batch", "53248"]
    done = subprocess.run([sys.executable, SCRIPT, *sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'evicted'" in done.stdout
