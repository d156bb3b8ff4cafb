"""benchmarks/tail_stream.py as a user runs it, on few rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import run

ROOT = Path(__file__).parents[2]
SMALL = ("--rows", 30_000, "--scale", 0.01, "--dim", 4, "--seeds", 5)


def benchmark(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "tail_stream.py"
    return run([sys.executable, script, "--workdir", folder / "w", "--out", folder / "out.json", *arguments])


@pytest.mark.slow
def test_every_way_is_trained_once_and_compared(tmp_path: Path) -> None:
    done = benchmark(tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert set(results["costs"]) == {
        f"{stream} {way}" for stream in ("tail", "default") for way in ("unknown", "hashed")
    }
    ideal = results["runs"][0]["ideal"]
    assert ideal["truth"] < ideal["learned"] < ideal["nothing_learned_of_rare_ids"]
    assert list((tmp_path / "w").iterdir()) == []
    again = benchmark(tmp_path, *SMALL)
    assert again.stdout.splitlines() == done.stdout.splitlines()[6:]
    other = benchmark(tmp_path, *SMALL, "--dim", 8)
    assert other.returncode == 1
    assert other.stderr.splitlines() == [
        f"{tmp_path / 'out.json'} has runs of other settings; give --out another file."
    ]
