"""The journeys of examples/ are true: each script runs to its end, small, and leaves what it promises."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from commands import run
from namespaces import can_make_namespaces

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "beyond_memory.sh",
    "plan_zionex.sh",
    "shrink_and_serve.sh",
    "two_machines.sh",
    "two_regions.sh",
}
"""Run by a test of this file; other journeys have tests of their own beside what they are of."""


def example(name: str, folder: Path, **settings: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run(["bash", EXAMPLES / name, folder], env={**os.environ, "PATH": path, **settings})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_script_has_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    missing = {path.name for path in EXAMPLES.glob("*.sh") if f'"{path.name}"' not in tests}
    assert not missing
    assert {path.name for path in EXAMPLES.glob("*.sh")} >= SCRIPTS


@pytest.mark.slow
def test_a_run_beyond_memory_gives_the_model_of_memory(tmp_path: Path) -> None:
    said = example("beyond_memory.sh", tmp_path, ROWS="20000", DRAM="3MiB")
    assert "rows on disk change no bit" in said
    tiers = json.loads((tmp_path / "runs/disk/summary.json").read_text())["tiers"]
    assert 0 < tiers["hit_rate"] < 1
    assert tiers["disk_bytes"] > tiers["memory_bytes"]
    assert "Cache hits" in (tmp_path / "beyond-memory.html").read_text()


@pytest.mark.slow
def test_two_machines_train_the_model_of_one(tmp_path: Path) -> None:
    if not can_make_namespaces():
        pytest.skip("making network namespaces needs root and iproute2")
    example("two_machines.sh", tmp_path, ROWS="20000")
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert two["log_loss"] == pytest.approx(one["log_loss"], abs=1e-5)
    plan = json.loads((tmp_path / "runs/two/plan.json").read_text())
    assert (plan["world_size"], plan["workers_per_node"]) == (2, 1)
    assert "Who waits for whom" in (tmp_path / "two-machines.html").read_text()
    assert "rank 1" in (tmp_path / "trace.json").read_text()


@pytest.mark.slow
def test_small_tables_are_frozen_and_answer(tmp_path: Path) -> None:
    example("shrink_and_serve.sh", tmp_path, ROWS="20000")
    adaptive = json.loads((tmp_path / "runs/small/summary.json").read_text())["adaptive"]
    assert adaptive["ratio"] > 15
    rate = json.loads((tmp_path / "rate.json").read_text())
    assert rate["answers"] > 0
    assert rate["failures"] == {}
    assert (tmp_path / "scores.parquet").stat().st_size > 1000
    assert (tmp_path / "compare.html").stat().st_size > 100_000


@pytest.mark.slow
def test_a_run_on_zionex_is_planned_beside_parameter_servers(tmp_path: Path) -> None:
    said = example("plan_zionex.sh", tmp_path)
    assert said.count("Beside asynchronous parameter servers") == 3
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["world_size"] == 128
    assert found["ingestion"]["readers"]["hosts"] > 10
    assert found["against"]["trainers_at_40x"] > 1
    assert (tmp_path / "neo-a.html").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_over_two_regions_is_planned(tmp_path: Path) -> None:
    example("two_regions.sh", tmp_path)
    compared = json.loads((tmp_path / "compared.json").read_text())
    stages, copies = (compared[side]["prediction"] for side in ("one", "other"))
    assert stages["fits"]
    # Between regions activations are fewer bytes than gradients.
    assert stages["breakdown"]["data_parallel"] < copies["breakdown"]["data_parallel"] / 2
    assert stages["step_seconds"] < copies["step_seconds"]
    assert (tmp_path / "stages.html").stat().st_size > 1000
