"""`megalith plan` and the page of a plan, as a user runs them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from commands import megalith, unwrapped
from megalith.core.errors import DataError
from megalith.report import write_plan_report
from megalith.sharding.plan import read_plan

TABLES = {
    "batch_size": 64,
    "tables": [
        {"name": "users", "rows": 200_000, "dim": 32, "lookups": 1},
        {"name": "items", "rows": 50_000, "dim": 64, "lookups": 20, "skew": 1.2},
        {"name": "shops", "rows": 500, "dim": 7, "pooling": "max"},
    ],
}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return megalith("plan", *arguments)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump(TABLES))
    return path


def test_tables_of_a_file_are_planned_written_and_drawn(tables: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    arguments = ("--tables", tables, "--world-size", 4, "--seconds", 1, "--out", out)
    done = run(*map(str, arguments), "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["global_batch"] == 256
    assert printed["world_size"] == 4
    assert [one["table"] for one in printed["placements"]] == ["users", "items", "shops"]
    assert printed["estimate"]["bound_by"] in ("link:node", "memory:hbm")
    plan = read_plan(out)
    assert plan.estimate.step_seconds == printed["estimate"]["step_seconds"]
    assert write_plan_report(out, page)["gap"] == plan.estimate.gap
    html = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    charts = {one["key"]: one["figure"] for one in json.loads(found[1])}
    assert [len(trace["x"]) for trace in charts["load"]["data"]] == [4, 4, 4, 4]
    assert "items" in html


def test_small_tables_are_told_that_one_worker_suffices(tables: Path, tmp_path: Path) -> None:
    arguments = ("--tables", tables, "--hardware", "cpu-rack", "--world-size", "2", "--seconds", "0.5")
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    estimate = printed["estimate"]
    assert estimate["one_worker_seconds"] <= estimate["step_seconds"]
    assert printed["one_worker_suffices"]
    assert sum(printed["step_parts_seconds"].values()) == pytest.approx(estimate["step_seconds"])
    alone = run(*arguments[:4], "--world-size", "1", "--global-batch", "128", "--seconds", "0.5", "--json")
    assert json.loads(alone.stdout)["estimate"]["step_seconds"] == estimate["one_worker_seconds"]
    assert "One worker suffices" in unwrapped(run(*arguments).stdout)


def test_tables_that_no_worker_holds_alone_get_no_such_advice(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    large = [{"name": f"t{number}", "rows": 60_000_000, "dim": 128, "lookups": 1} for number in range(4)]
    path.write_text(yaml.safe_dump({"batch_size": 64, "tables": large}))
    done = run("--tables", path, "--world-size", "8", "--seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["estimate"]["one_worker_seconds"] is None


def test_people_get_tables_and_the_step(tables: Path) -> None:
    done = run("--tables", tables, "--hardware", "cpu-rack", "--world-size", "20", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    for words in (
        "users",
        "Load of 20 workers",
        "most",
        "bound by ",
        "above the best possible",
        "runnable: yes",
    ):
        assert words in unwrapped(done.stdout)


def test_a_file_of_ones_own_hardware_is_read(tables: Path, tmp_path: Path) -> None:
    hardware = tmp_path / "mine.yaml"
    hardware.write_text(
        "devices:\n  mine: {generation: cpu, flops: {fp32: 1.0e+11}, memory: [{name: ddr, gibibytes: 8, "
        "gigabytes_per_second: 20}]}\nclusters:\n  this-machine: {device: mine, levels: [{name: rack, "
        "count: 1, link: ethernet-25}]}\n"
    )
    done = run("--tables", tables, "--hardware", hardware, "--world-size", "2", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workers_per_node"] == 2
    assert found["estimate"]["memory_capacity_bytes"]["ddr"] == pytest.approx(0.8 * 4 * 2**30)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Name a recipe"),
        (("criteo-dlrm", "data.path=nowhere"), "not a prepared data set"),
        (("--tables", "nowhere.yaml"), "nowhere.yaml does not exist"),
        (("criteo-dlrm", "--hardware", "zionx"), "zionex"),
    ],
)
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_bad_tables_name_their_place(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("tables: [{name: a, rows: 5, dims: 8}]")
    done = run("--tables", path)
    assert done.returncode == 2
    assert "tables.0: unknown key 'dims'; did you mean 'dim'?" in done.stderr


def test_a_plan_without_an_estimate_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    shard = {"worker": 0, "rows": [0, 1], "columns": [0, 1]}
    placement = {"table": "t", "kind": "table_wise", "shards": [shard]}
    content = {"version": 2, "world_size": 1, "workers_per_node": 1, "placements": [placement]}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="has no estimate to draw"):
        write_plan_report(path, tmp_path / "plan.html")


def test_the_local_cluster_needs_a_number_of_ranks(tables: Path) -> None:
    done = run("--tables", tables, "--hardware", "local")
    assert done.returncode == 2
    assert "--hardware local needs --world-size" in done.stderr
    done = run("--tables", tables, "--hardware", "local", "--world-size", "2", "--seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["estimate"]["hardware"] == "these hosts"


def test_a_plan_says_how_many_readers_it_needs(tables: Path) -> None:
    arguments = (
        "--tables",
        str(tables),
        "--world-size",
        "4",
        "--seconds",
        "1",
        "--samples-per-second",
        "1e9",
    )
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["ingestion"]
    # A label, 22 ids, and where those of three features begin.
    assert found["sample_bytes"] == 4 + 8 * 22 + 8 * 3
    assert found["bytes_per_second"] == pytest.approx(204e9)
    assert found["front_end"] == "ethernet-100x4"
    assert found["front_end_share"] == pytest.approx(204e9 / (0.84 * 50e9))
    assert found["readers"]["cores"] == 70
    words = unwrapped(run(*arguments, "--raw").stdout)
    assert "The front-end network is too narrow" in words
    assert "Readers, from raw files: 420 cores" in words


def test_a_plan_is_compared_with_parameter_servers(tables: Path, tmp_path: Path) -> None:
    arguments = ("--tables", str(tables), "--world-size", "4", "--seconds", "1", "--against", "cpu-servers")
    refused = run(*arguments)
    assert refused.returncode == 2
    assert "mflops_per_sample" in refused.stderr
    tables.write_text(yaml.safe_dump({**TABLES, "numbers": 13, "mflops_per_sample": 50}))
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    systems = printed["against"]["systems"]
    assert [one["samples_per_second"] for one in systems] == sorted(
        one["samples_per_second"] for one in systems
    )
    fed = printed["ingestion"]["fed_samples_per_second"]
    closest = min(systems, key=lambda one: abs(one["trainers"] - printed["against"]["trainers_at_40x"]))
    assert fed / closest["samples_per_second"] == pytest.approx(closest["speedup"])
    assert "40 times quicker" in unwrapped(run(*arguments).stdout)
    assert run("--tables", str(tables), "--trainers", "4").returncode == 2
