"""Trainer, writer of data and servers are killed while they work; nothing is lost, and somebody answers."""

import json
import sys
from pathlib import Path

import pytest

from commands import run

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "live_kills.py"


@pytest.mark.slow
def test_kills_leave_the_model_of_an_undisturbed_run_and_the_address_answered(tmp_path: Path) -> None:
    settings = ("--kills", 4, "--pause", 4, "--rows", 210, "--patience", 60, "--seed", 5)
    out = tmp_path / "result.json"
    done = run([sys.executable, SCRIPT, "--workdir", tmp_path / "work", "--out", out, *settings])
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["results"]
    # One server, the trainer and the other server, then the writer of data.
    assert found["kills"] == {"server 0": 1, "server 1": 1, "trainer": 1, "writer": 1}
    assert found["same_model"]
    assert found["servers_score_the_same"] == [True, True]
    assert found["answers"]
    assert not found["unanswered"]
