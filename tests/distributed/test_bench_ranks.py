"""`megalith bench train --ranks 2`: ranks learn what one process does; the result says what was sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import megalith, unwrapped
from megalith.bench.peers.lookup import OURS, LookupShape
from megalith.bench.train.rank_plans import make_plan
from megalith.bench.train.rank_worker import ALONE
from megalith.bench.train.ranks import bench_ranks
from megalith.core.errors import ConfigError

SHAPE = LookupShape(tables=3, rows=50, dim=8, batch=16, lookups=2)


def test_two_ranks_are_measured_beside_one(tmp_path: Path) -> None:
    out, page = tmp_path / "result.json", tmp_path / "page.html"
    sizes = {"tables": 3, "rows": 50, "dim": 8, "batch": 16, "lookups": 2, "repeats": 1}
    small = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    done = megalith("bench", "train", "--ranks", 2, "--peer", "none", *small, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "Parallel efficiency" in unwrapped(done.stdout)
    content = json.loads(out.read_text())
    assert content["settings"]["ranks"] == 2
    assert content["settings"]["sharding"] == "table_wise"
    results = content["results"]
    assert set(results["candidates"]) == {OURS, ALONE}
    ours, alone = results["candidates"][OURS], results["candidates"][ALONE]
    assert len(ours["seconds"]) == 1
    assert ours["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert results["parallel_efficiency"] == pytest.approx(
        alone["median_seconds"] / (2 * ours["median_seconds"])
    )
    # Half of the samples' vectors go to the other rank, and their gradients come back; with a few bytes more.
    assert 8 * 3 * 8 * 4 <= results["sent_bytes_a_step"]["vectors"] < 2 * 8 * 3 * 8 * 4
    assert set(results["sent_bytes_a_step"]) == {"indices", "vectors", "gradients"}
    report = megalith("report", out, "--out", page)
    assert report.returncode == 0, report.stderr
    assert "Sent between ranks" in page.read_text()


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise", "data_parallel"])
def test_plans_of_one_kind_cover_their_tables(sharding: str) -> None:
    plan = make_plan(SHAPE, 3, sharding)  # type: ignore[arg-type]
    assert {placement.kind for placement in plan.placements} == {sharding}
    assert {worker for placement in plan.placements for worker in placement.workers} == {0, 1, 2}


def test_a_batch_that_does_not_divide_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match="--batch 16 does not divide evenly over 3 ranks"):
        bench_ranks(SHAPE, 3, "table_wise", [])


def test_torchrec_is_not_asked_for_rows() -> None:
    with pytest.raises(ConfigError, match="row_wise tables on the CPU; pass --sharding table_wise"):
        bench_ranks(SHAPE, 2, "row_wise", ["torchrec"])
