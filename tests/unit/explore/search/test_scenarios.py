"""The scenario suite: what it covers, and baselines that are what they say and at their best."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_jobs import DENSE, job

from megalith.core.errors import BoundError, ConfigError
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.load import load_job, resolve_cluster, scenario_names
from megalith.explore.predict import predict
from megalith.explore.scenarios import ablation, production, run_scenario, scenario_jobs
from megalith.explore.scenarios.baselines import production_space
from megalith.explore.scenarios.crosspipe import crosspipe
from megalith.explore.scenarios.suite import scenario_gap
from megalith.explore.search import search
from megalith.explore.search.evaluate import evaluate
from megalith.explore.search.space.baseline_layouts import site_levels
from megalith.explore.search.space.search_space import SearchSpace

SITES = {"counts": (4, 4, 2), "batch": 32}


def parallel_of(asked: Job) -> Parallel:
    assert asked.parallel is not None
    return asked.parallel


def test_the_suite_covers_what_it_must() -> None:
    jobs = list(scenario_jobs())
    clusters = [resolve_cluster(one.cluster) for one in jobs]
    assert len(jobs) >= 24
    assert [one.name for one in jobs] == scenario_names()
    models = [one.model for one in jobs if isinstance(one.model, TransformerModel)]
    assert sum(model.experts > 0 for model in models) >= 4
    names = " ".join(one.name for one in jobs)
    assert all(size in names for size in ("70b", "405b", "1t", "deepseek", "moe"))
    devices = [cluster.devices for cluster in clusters]
    assert min(devices) <= 1024
    assert max(devices) >= 98_000
    outermost = [cluster.levels[-1] for cluster in clusters]
    assert {2, 3, 4} <= {level.count for level in outermost}
    assert {1, 2, 4, 8} <= {level.oversubscription for level in outermost}
    latencies = [level.link.latency_seconds for level in outermost]
    assert min(latencies) <= 1e-4
    assert max(latencies) >= 0.06


def test_an_unknown_scenario_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean '405b-2-regions-8k-1ms'"):
        list(scenario_jobs(["405b-2-regions-8k-1m"]))


def test_sites_are_what_wide_area_links_join() -> None:
    def names(scenario: str) -> list[str]:
        cluster = resolve_cluster(load_job(scenario).cluster)
        return [cluster.levels[level].name for level in site_levels(cluster)]

    assert names("70b-2-buildings-1k-1to1") == ["campus"]
    assert names("1t-3-regions-98k-30ms") == ["campus", "world"]


def test_production_lays_copies_across_sites_and_is_the_best_of_its_kind() -> None:
    asked = job(**SITES, fixed={"tp": 2, "cp": 1})
    best = production(asked)
    parallel = parallel_of(best.job)
    used = [piece for piece in parallel.placement if getattr(parallel, piece.partition(":")[0]) > 1]
    assert used[-1].startswith("dp")
    assert best.job.training.schedule in ("1f1b", "interleaved")
    assert best.job.network.routing == "ecmp"
    cluster = resolve_cluster(asked.cluster)
    space = SearchSpace(asked, cluster, production_space(cluster))
    everything = min(evaluate(space, predict, plan).seconds for plan in space.every_plan())
    # Moving layers and overlap may gain a little beyond the list.
    assert best.prediction.step_seconds <= everything * (1 + 1e-12)


def test_crosspipe_lays_stages_across_sites_and_copies_inside() -> None:
    plan = crosspipe(job(**SITES))
    parallel = parallel_of(plan.job)
    assert parallel.placement == ("tp", "cp", "dp", "pp")
    assert parallel.pp % 2 == 0
    assert parallel.tp * parallel.cp * parallel.dp <= 16
    assert plan.job.network.routing == "ecmp"
    assert sum(plan.prediction.breakdown.values()) == pytest.approx(plan.prediction.step_seconds, rel=1e-6)


def test_crosspipes_order_is_no_slower_than_1f1b_with_the_same_plan() -> None:
    plan = crosspipe(job(**SITES))
    training = plan.job.training.model_copy(update={"schedule": "1f1b", "extra_in_flight": 0})
    assert plan.prediction.step_seconds <= predict(
        plan.job.model_copy(update={"training": training})
    ).step_seconds * (1 + 1e-9)


def test_no_baseline_beats_the_best_plan() -> None:
    asked = job(**SITES, fixed={"tp": 2, "cp": 1})
    row = run_scenario(asked, workers=1)
    # Those of the search itself, not the best of it and the baselines.
    found = search(asked, workers=1)
    for baseline, gain in ((row.production, row.over_production), (row.crosspipe, row.over_crosspipe)):
        assert baseline is not None
        assert gain == baseline.prediction.step_seconds / row.best.prediction.step_seconds - 1
        assert found.best.prediction.step_seconds <= baseline.prediction.step_seconds
    assert row.gap == pytest.approx(found.gap)
    content = row.to_dict()
    assert content["best"]["step_seconds"] == row.best.prediction.step_seconds
    assert content["devices"] == 32


def test_a_baseline_below_the_bound_of_the_search_is_reported() -> None:
    asked = job(**SITES, fixed={"tp": 2, "cp": 1, "schedule": "1f1b", "micro_batch": 1})
    found, baseline = search(asked, workers=1), production(asked)
    step = baseline.prediction.step_seconds
    assert scenario_gap(found, found.best, [baseline, None]) == found.gap
    wrong = replace(found, lower_bound_seconds=1.01 * step)
    with pytest.raises(BoundError, match="by a baseline"):
        scenario_gap(wrong, baseline, [replace(baseline, in_space=True), None])
    # An order that the search does not know may beat all that it knows.
    assert scenario_gap(wrong, baseline, [replace(baseline, in_space=False)]) == 0


def test_a_model_that_no_site_can_hold_has_no_production_row() -> None:
    large = {**DENSE, "hidden": 8192, "layers": 48, "heads": 64, "ffn": 28672}
    row = run_scenario(job(model=large, counts=(2, 2, 2), batch=8, fixed={"cp": 1}), workers=1)
    assert row.production is None
    assert row.over_production is None


def test_each_dimension_alone_gains_no_more_than_all_together() -> None:
    asked = job(**SITES, fixed={"tp": 2, "cp": 1})
    gains = ablation(asked)
    assert set(gains) == {"placement", "schedule", "network", "joint"}
    joint = gains["joint"]
    assert joint is not None
    assert all(gain is not None and -1e-9 <= gain <= joint + 1e-9 for gain in gains.values())


@pytest.mark.slow
def test_a_hundred_thousand_devices_are_searched_in_a_minute_and_two_gibibytes() -> None:
    from megalith.bench.explore import LIMITS, _search

    found = _search("1t-3-regions-98k-30ms")
    assert found["max_resident_bytes"] < LIMITS["search_bytes"]
    assert found["gap"] < 0.5
