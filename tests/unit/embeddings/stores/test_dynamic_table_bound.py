"""Ids through a dynamic table within some bytes: benchmarks/dynamic_table_bound.py checks every batch."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "dynamic_table_bound.py"


@pytest.mark.parametrize(
    ("ids", "bound", "batch"),
    [
        (120_000, "8MiB", 2048),
        pytest.param(5_000_000, "128MiB", 32_768, marks=pytest.mark.slow),
    ],
)
def test_the_bound_holds_and_every_id_reads_what_was_written(ids, bound, batch):
    sizes = ["--ids", str(ids), "--bound", bound, "--batch", str(batch)]
    done = subprocess.run([sys.executable, SCRIPT, *sizes], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[:-1])
    assert int(found["evicted"].replace(",", "")) > ids // 2
