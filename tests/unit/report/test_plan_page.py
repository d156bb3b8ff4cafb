"""The page of a plan: what it shows adds up, and reads whatever the sizes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.report import write_plan_report
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.planner import Planner, make_plan
from megalith.sharding.planner.search import SearchSettings
from megalith.sharding.planner.types import Workload

QUICK = SearchSettings(seconds=0.3)


def plan_of(rows: int = 50_000, world_size: int = 4) -> ShardingPlan:
    tables = [
        TableSpec(name=f"table_{number}", rows=rows, dim=16 << number, features=(f"f{number}",))
        for number in range(3)
    ]
    return make_plan(tables, "zionex", global_batch=4096, world_size=world_size, search=QUICK)


def page_of(plan: ShardingPlan, folder: Path) -> tuple[str, dict[str, dict]]:
    plan.write(folder / "plan.json")
    write_plan_report(folder / "plan.json", folder / "plan.html")
    text = (folder / "plan.html").read_text(encoding="utf-8")
    content = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert content
    return text, {chart["key"]: chart["figure"] for chart in json.loads(content[1])}


@pytest.mark.parametrize("rows", [50, 50_000, 20_000_000])
def test_the_headline_is_the_sum_of_the_parts_that_are_shown(rows: int, tmp_path: Path) -> None:
    text, _ = page_of(plan_of(rows), tmp_path)
    headline = re.search(r'<div class="value">([\d.]+) (s|ms|us)</div>', text)
    assert headline
    parts = re.findall(r'<span class="part">(\w+) ([\d.]+) (s|ms|us)</span>', text)
    assert "latency" in {name for name, _, _ in parts}
    assert {unit for _, _, unit in parts} == {headline[2]}
    assert sum(Decimal(value) for _, value, _ in parts) == Decimal(headline[1])
    listed = dict(re.findall(r"<tr><td>(\w+)</td><td class=\"words\">[^<]*</td><td>([\d.]+ \w+)</td>", text))
    assert listed["step"] == f"{headline[1]} {headline[2]}"
    assert all(listed[name] == f"{value} {unit}" for name, value, unit in parts)


def test_a_phase_that_the_pipeline_hides_adds_nothing(tmp_path: Path) -> None:
    tables = [TableSpec(name="t", rows=20_000_000, dim=64, features=("f",))]
    workload = Workload(65536, pipelined=True)
    inputs = plan_inputs(tables, catalog().cluster("zionex"), workload, world_size=16)
    plan = Planner(QUICK).plan(inputs)
    assert plan.estimate is not None
    assert "input" not in plan.estimate.step_parts()
    assert sum(plan.estimate.step_parts().values()) == pytest.approx(plan.estimate.step_seconds, rel=1e-12)
    text, _ = page_of(plan, tmp_path)
    assert "0, hidden by the pipeline" in text


def test_small_tables_have_an_axis_of_bytes_that_reads(tmp_path: Path) -> None:
    _, figures = page_of(plan_of(rows=50), tmp_path)
    axis = figures["memory"]["layout"]["yaxis"]
    assert all(re.fullmatch(r"[\d.]+ (B|KiB)", text) for text in axis["ticktext"])
    assert len(set(axis["ticktext"])) == len(axis["ticktext"]) >= 3
    tallest = max(size for trace in figures["memory"]["data"] for size in trace["y"])
    assert axis["range"][1] > tallest > axis["tickvals"][-2]


def test_one_worker_is_advised_only_where_it_is_no_slower(tmp_path: Path) -> None:
    plan = plan_of()
    assert plan.estimate is not None
    step = plan.estimate.step_seconds
    for seconds, advised in ((None, False), (1.01 * step, False), (step, True), (0.5 * step, True)):
        estimate = replace(plan.estimate, one_worker_seconds=seconds)
        text, _ = page_of(plan.model_copy(update={"estimate": estimate}), tmp_path)
        assert ("One worker suffices" in text) == advised
