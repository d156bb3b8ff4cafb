"""What the Explorer says of a setting, from links measured in isolation and the seconds that sites wait."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from settings import SiteSetting

from megalith.cost.uneven_ring import uneven_ring_seconds
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster, Level, Link
from megalith.hardware.sites import SiteCluster

SITES = 3
Measured = dict[tuple[int, int], Link]


def site_cluster(measured: Measured) -> SiteCluster:
    """The sites as the package describes them."""
    alone = Level("site of one", 1, catalog().link("loopback"))
    site = Cluster("", catalog().device("cpu"), (alone,))
    pairs = tuple((one, other, Level("pair", 2, link)) for (one, other), link in measured.items())
    return SiteCluster("testbed", tuple(replace(site, name=str(number)) for number in range(SITES)), pairs)


def ring_of(measured: Measured) -> list[int]:
    """The order of the ring that the prediction takes."""
    return list(site_cluster(measured).ring_order())


def predicted_seconds(setting: SiteSetting, measured: Measured) -> float:
    """The step of a setting."""
    if setting.kind == "pipeline":
        schedule, costs = _pipeline(setting, measured)
        return simulate(schedule, costs).makespan_seconds
    if setting.kind == "replicas":
        longest = max(
            3 * setting.layer_seconds * speed * share
            for speed, share in zip(setting.speeds, setting.shares, strict=True)
        )
        return longest + _ring_seconds(measured, "all_reduce", setting.message_bytes)
    return _sharded(setting, measured)


def stage_seconds(setting: SiteSetting) -> list[dict[str, float]]:
    """Seconds of the operations of each stage."""
    return [
        {
            "F": setting.layer_seconds * speed * share,
            "BW": 2 * setting.layer_seconds * speed * share,
            "B": setting.layer_seconds * speed * share,
            "W": setting.layer_seconds * speed * share,
        }
        for speed, share in zip(setting.speeds, setting.shares, strict=True)
    ]


def pipeline_schedule(setting: SiteSetting, measured: Measured) -> Schedule:
    """The order that ranks run and the simulation follows."""
    return _pipeline(setting, measured)[0]


def _pipeline(setting: SiteSetting, measured: Measured) -> tuple[Schedule, StepCosts]:
    seconds = stage_seconds(setting)

    def transfer(sender: int, receiver: int) -> Transfer:
        link = measured[min(sender, receiver), max(sender, receiver)]
        name = ("site", sender, receiver)
        return Transfer(name, setting.message_bytes / link.bytes_per_second, link.latency_seconds)

    boundaries = list(pairwise(range(SITES)))
    costs = StepCosts(
        forward=tuple(stage["F"] for stage in seconds),
        backward_input=tuple(stage["B"] for stage in seconds),
        backward_weight=tuple(stage["W"] for stage in seconds),
        forward_transfers=tuple(transfer(one, other) for one, other in boundaries),
        backward_transfers=tuple(transfer(other, one) for one, other in boundaries),
    )
    options = setting.schedule, SITES, setting.micro_batches, 1, setting.extra_in_flight
    return build_schedule(*options, costs=costs if setting.schedule == "long-link" else None), costs


def _sharded(setting: SiteSetting, measured: Measured) -> float:
    gather = _ring_seconds(measured, "all_gather", setting.message_bytes, repeated=True)
    scatter = _ring_seconds(measured, "reduce_scatter", setting.message_bytes, repeated=True)
    slowest, layers = max(setting.speeds), setting.layers
    chunks = [(0, chunk) for chunk in range(layers)]
    costs = StepCosts(
        forward=(setting.layer_seconds * slowest,) * layers,
        backward_input=(setting.layer_seconds * slowest,) * layers,
        backward_weight=(setting.layer_seconds * slowest,) * layers,
        parameters={key: Collective("ring", gather, 0.0, "op") for key in chunks},
        gradient={key: Collective("ring", scatter, 0.0, "op") for key in chunks},
    )
    return simulate(build_schedule("breadth-first", 1, 1, layers), costs).makespan_seconds


def _ring_seconds(measured: Measured, kind: str, size: float, *, repeated: bool = False) -> float:
    return uneven_ring_seconds(site_cluster(measured).ring_edges(), kind, size, repeated=repeated)
