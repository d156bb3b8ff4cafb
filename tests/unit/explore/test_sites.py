"""Sites that differ: exactly one cluster where they do not, and what each difference does."""

from __future__ import annotations

from typing import Any

import pytest

from megalith.core.errors import ConfigError, PlanError
from megalith.explore import Prediction, load_job, predict
from megalith.explore.load import resolve_sites
from megalith.explore.sites import predict_sites
from megalith.hardware.catalog import ClusterSpec, catalog

MODEL = {"hidden": 4096, "layers": 32, "heads": 32, "ffn": 16384, "vocab": 51200, "seq": 2048}
INSIDE = [
    {"name": "node", "count": 8, "link": "nvlink4"},
    {"name": "zone", "count": 4, "link": "ib-ndr400x8"},
]
WAN = {"link": "wan-1000km", "gigabits_per_second": 400, "latency_seconds": 0.005}
STAGES = {"tp": 8, "pp": 4, "dp": 2, "micro_batch": 1, "global_batch": 32, "placement": ["tp", "dp", "pp"]}
REPLICAS = {"tp": 8, "pp": 2, "dp": 4, "micro_batch": 1, "global_batch": 32, "placement": ["tp", "pp", "dp"]}


def site(name: str, device: str = "h100-80g", zone: int = 4) -> dict[str, Any]:
    return {"name": name, "device": device, "levels": [INSIDE[0], {**INSIDE[1], "count": zone}]}


def ask(parallel: dict[str, Any], sites: list[dict[str, Any]], links: list[dict[str, Any]]) -> Prediction:
    return predict(
        load_job({"model": MODEL, "cluster": {"sites": sites, "links": links}, "parallel": parallel})
    )


@pytest.mark.parametrize("parallel", [STAGES, REPLICAS])
@pytest.mark.parametrize("sites", [2, 3])
def test_equal_sites_predict_exactly_what_the_plain_form_does(parallel: dict[str, Any], sites: int) -> None:
    scaled = {**parallel, "pp": parallel["pp"] * sites // 2} if parallel is STAGES else parallel
    if parallel is REPLICAS:
        scaled = {**parallel, "dp": 2 * sites, "global_batch": 16 * sites}
    layers = {"model": {**MODEL, "layers": 36}}
    plain = {"device": "h100-80g", "levels": [*INSIDE, {"name": "site", "count": sites, **WAN}]}
    whole = predict(load_job({**layers, "cluster": plain, "parallel": scaled}))
    written = [site(f"s{number}") for number in range(sites)]
    apart = predict(load_job({**layers, "cluster": {"sites": written, "links": [WAN]}, "parallel": scaled}))
    assert apart == whole


@pytest.mark.parametrize("parallel", [STAGES, REPLICAS])
def test_the_way_of_unequal_sites_gives_the_same_for_equal_ones(parallel: dict[str, Any]) -> None:
    spec = {"sites": [site("a"), site("b")], "links": [WAN]}
    settings = {
        "parallel": {**parallel, "sharding": "zero1"},
        "training": {"schedule": "1f1b", "recompute": "none"},
    }
    job = load_job({"model": MODEL, "cluster": spec, **settings})
    assert resolve_sites(job) is None
    forced = predict_sites(job, catalog().build_sites(ClusterSpec.model_validate(spec)))
    whole = predict(job)
    assert forced.step_seconds == pytest.approx(whole.step_seconds, rel=1e-12)
    assert forced.mfu == pytest.approx(whole.mfu, rel=1e-12)
    assert forced.memory == whole.memory


def test_a_slower_site_takes_fewer_layers_and_fewer_samples() -> None:
    mixed = [site("fast", "h100-80g"), site("slow", "a100-80g")]
    half = ask({**STAGES, "layers_per_stage": [8, 8, 8, 8]}, mixed, [WAN])
    split = ask(STAGES, mixed, [WAN])
    assert split.step_seconds < 0.95 * half.step_seconds
    # Gradients over a thin link would take longer than what samples are split by.
    wide = {**WAN, "gigabits_per_second": 40_000}
    halves = ask({**REPLICAS, "batch_per_site": [16, 16]}, mixed, [wide])
    shares = ask(REPLICAS, mixed, [wide])
    assert shares.step_seconds < 0.95 * halves.step_seconds
    fast = ask(REPLICAS, [site("a"), site("b")], [wide])
    assert fast.step_seconds < shares.step_seconds


def test_sites_may_have_unequal_numbers_of_devices() -> None:
    unequal = [site("large", zone=4), site("small", zone=2)]
    stages = ask({**STAGES, "pp": 3, "global_batch": 32}, unequal, [WAN])
    assert stages.step_seconds > 0
    with pytest.raises(PlanError, match=r"not what the sites hold, 2 \+ 1; take parallel\.pp=3"):
        ask(STAGES, unequal, [WAN])
    replicas = ask({**REPLICAS, "dp": 3, "global_batch": 48}, unequal, [WAN])
    assert replicas.step_seconds > 0
    with pytest.raises(PlanError, match=r"cannot be split into rounds of 2, 3 samples|take parallel"):
        ask({**REPLICAS, "dp": 3, "global_batch": 1}, unequal, [WAN])


def test_each_pair_has_its_own_link() -> None:
    three = [site("a"), site("b"), site("c")]
    parallel = {**STAGES, "pp": 6, "global_batch": 48, "layers_per_stage": [5, 5, 6, 6, 5, 5]}
    near = [{**WAN, "between": ["a", "b"]}, {**WAN, "between": ["b", "c"]}, {**WAN, "between": ["a", "c"]}]
    far = [near[0], {**near[1], "latency_seconds": 0.06}, near[2]]
    unused = [near[0], near[1], {**near[2], "latency_seconds": 0.06}]
    base = ask(parallel, three, [near[0], near[1], {**near[2], "latency_seconds": 0.03}]).step_seconds
    # The pipeline goes from a to b to c; what joins a and c does not matter to it.
    assert ask(parallel, three, far).step_seconds > base + 0.1
    assert ask(parallel, three, unused).step_seconds == pytest.approx(base, rel=1e-9)
    thin = [{**near[0], "gigabits_per_second": 2.0}, near[1], near[2]]
    assert ask(parallel, three, thin).bound_by == "link:site"


def test_other_jobs_on_a_link_take_their_part_of_it() -> None:
    sites = [site("a"), site("b", zone=2)]
    parallel = {**REPLICAS, "dp": 3, "global_batch": 48, "sharding": "none"}
    alone = ask(parallel, sites, [WAN])
    shared = ask(parallel, sites, [{**WAN, "other_gigabits_per_second": 390}])
    assert shared.step_seconds > alone.step_seconds
    with pytest.raises(ConfigError, match="leaves nothing of the link"):
        ask(parallel, sites, [{**WAN, "other_gigabits_per_second": 400}])


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ({"sites": [site("a")], "links": [WAN]}, "sites must be two or more"),
        ({"sites": [site("a"), site("a")], "links": [WAN]}, "'a' occurs twice"),
        (
            {
                "sites": [site("a"), site("b"), site("c", "a100-80g")],
                "links": [{**WAN, "between": ["a", "b"]}],
            },
            "no link between 'a' and 'c'",
        ),
        ({"sites": [site("a"), site("b")], "links": [{**WAN, "between": ["a", "x"]}]}, "must be two sites"),
        ({"device": "h100-80g"}, "'levels' is missing"),
        ({"device": "h100-80g", "sites": [site("a"), site("b")], "links": [WAN]}, "not both"),
        ({"sites": [{"name": "a"}, site("b")], "links": [WAN]}, "site 'a' needs device and levels"),
    ],
)
def test_sites_that_do_not_add_up_are_refused(cluster: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_job({"model": MODEL, "cluster": cluster, "parallel": STAGES})
