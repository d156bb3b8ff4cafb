"""The Explorer's pages, of steps that were really simulated."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.explore.job import Job, Parallel
from megalith.explore.load import load_job, resolve_cluster
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline
from megalith.explore.plan_text import axes_of_levels, plan_summary
from megalith.explore.predict import predict
from megalith.explore.search.result import RankedPlan, SearchResult, Sensitivity
from megalith.report.explore.page import render_prediction, render_search
from megalith.report.explore.pipeline import pipeline_pictures


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job("gpt3-175b")


def step(name: str, devices: int, micro_batches: int, chunks: int = 1) -> Timeline:
    schedule = build_schedule(name, devices, micro_batches, chunks)
    costs = StepCosts.uniform(devices * chunks, 1.0, 1.0, 1.0, transfer_seconds=0.05)
    return simulate(schedule, costs, record=True)


def boxes(svg: str, kind: str) -> int:
    return sum(path.count("M") for path in re.findall(rf'<path class="k-{kind}(?: other)?" d="([^"]*)"', svg))


def test_every_operation_is_a_box() -> None:
    timeline = step("zb-h1", 4, 8)
    (picture,) = pipeline_pictures(timeline)
    for kind in ("F", "B", "W"):
        assert boxes(picture.svg, kind) == 4 * 8
    assert boxes(picture.svg, "forward") == 3 * 8
    assert "stage 3" in picture.svg
    assert ">7</text>" in picture.svg


def test_a_long_step_has_a_second_picture_of_its_beginning() -> None:
    whole, beginning = pipeline_pictures(step("interleaved", 4, 64, 2))
    assert whole.title == "The whole step"
    assert boxes(whole.svg, "F") == 4 * 64 * 2
    assert boxes(beginning.svg, "F") < 4 * 60
    assert "chunk" in beginning.caption


def test_a_very_long_step_stays_light() -> None:
    timeline = step("1f1b", 16, 1500)
    assert len(timeline.spans) > 48_000
    pictures = pipeline_pictures(timeline)
    assert sum(len(picture.svg) for picture in pictures) < 600_000


def test_a_page_has_all_parts_and_asks_the_network_for_nothing(job: Job) -> None:
    html = render_prediction(job, resolve_cluster(job.cluster), predict(job, record=True))
    for words in (
        "Predicted step",
        "Where the step goes",
        "Memory of the fullest device",
        "The pipeline",
        "nvlink3",
    ):
        assert words in html
    assert "plotly" not in html
    assert not re.search(r"(?:src|href)=\"https?:", html)
    assert len(html) < 1_000_000


def test_names_cannot_break_out_of_the_explorers_page(job: Job) -> None:
    named = job.model_copy(update={"name": "<script>alert(1)</script>"})
    html = render_prediction(named, resolve_cluster(job.cluster), predict(job))
    assert "<script>alert" not in html


def test_a_recommendation_model_has_a_page() -> None:
    job = load_job("dlrm-zionex")
    html = render_prediction(job, resolve_cluster(job.cluster), predict(job))
    assert "Samples a second" in html


def test_the_page_of_a_search_shows_plans_gains_and_the_front(job: Job) -> None:
    prediction = predict(job, record=True)
    other = load_job("gpt3-175b", ["parallel.vpp=1", "training.schedule=1f1b", "training.local_steps=8"])
    plans = (
        RankedPlan(job, prediction, "search", cross_site_bytes=1e9),
        RankedPlan(other, predict(other), "local move", cross_site_bytes=5e8),
    )
    gain = Sensitivity("level:zone", "bandwidth", 2.0, 13.0, 0.05, 0)
    result = SearchResult(plans[0], plans, plans, 12.0, 0.1, 10, 20, 5, (gain,), ("It is `fast`.",))
    html = render_search(job, resolve_cluster(job.cluster), result, prediction)
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    charts = {chart["key"]: chart["figure"] for chart in json.loads(found[1])}
    assert set(charts) == {"pareto-cross_site", "pareto-memory"}
    best = next(trace for trace in charts["pareto-memory"]["data"] if trace["name"] == "best")
    assert best["x"] == [prediction.step_seconds]
    for words in (
        "twice the bandwidth of links of zone",
        "changes the mathematics",
        "<code>fast</code>",
        "local move",
    ):
        assert words in html


@given(
    sizes=st.tuples(*[st.sampled_from((1, 2, 4))] * 4),
    order=st.permutations(["tp", "cp", "dp", "pp"]),
)
def test_axes_of_levels_multiply_to_the_axes(sizes: tuple[int, int, int, int], order: list[str]) -> None:
    tp, cp, dp, pp = sizes
    parallel = Parallel(tp=tp, cp=cp, dp=dp, pp=pp, global_batch=64, placement=tuple(order))
    cluster = resolve_cluster(load_job({"model": "llama3-8b", "cluster": "two-regions"}).cluster)
    levels = axes_of_levels(parallel, cluster)
    for axis, size in (("tp", tp), ("cp", cp), ("dp", dp), ("pp", pp)):
        assert prod(level.get(axis, 1) for level in levels) == size


def test_a_plan_in_words_names_what_is_unusual(job: Job) -> None:
    assert plan_summary(job).startswith("tp=8 pp=8 vpp=3; interleaved")
    cut = load_job("gpt3-175b", ["training.compression=int8", "network.multipath=4"])
    assert "int8 gradients across sites" in plan_summary(cut)
    assert "4 paths" in plan_summary(cut)


def test_a_page_is_written_whole(job: Job, tmp_path: Path) -> None:
    from megalith.report import write_prediction_report

    out = tmp_path / "deep" / "page.html"
    write_prediction_report(job, resolve_cluster(job.cluster), predict(job), out)
    assert out.read_text(encoding="utf-8").endswith("</html>\n")
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
