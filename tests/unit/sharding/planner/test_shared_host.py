"""Processes that share a host: one whose peers wait is quicker, all together never are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.estimate.predict import predict_loads, predict_step
from megalith.sharding.planner.loads import phase_seconds
from megalith.sharding.planner.topology import topology_of
from megalith.sharding.planner.types import NUM_PHASES, PHASES

BATCH = 4096
TABLES = [
    TableSpec(name=f"t{number}", rows=10_000, dim=32, features=(f"f{number}",), pooling="sum")
    for number in range(4)
]


def host(cores: int, core_rate: float = 20e9, all_rate: float = 1e12) -> Cluster:
    """One host; by default its bus is never full."""
    cluster = catalog().cluster("cpu-rack")
    device = replace(cluster.device, name="host", cores=cores, core_bytes_per_second=core_rate)
    memory = replace(device.memory[0], bytes_per_second=all_rate)
    device = replace(device, memory=(memory, *device.memory[1:]))
    return replace(cluster, device=device, levels=(replace(cluster.levels[0], count=1),))


def plan_of(ranks: int, workers: list[int], kind: str = "table_wise") -> ShardingPlan:
    """Whole tables on these workers, or their rows or columns cut over all."""
    placements = []
    for table, first in zip(TABLES, workers, strict=True):
        rows, columns = [(0, table.rows)] * ranks, [(0, table.dim)] * ranks
        if kind == "row_wise":
            rows = [*pairwise(np.linspace(0, table.rows, ranks + 1).astype(int).tolist())]
        shards = [
            Shard(worker=(first + place) % ranks, rows=rows[place], columns=columns[place])
            for place in range(1 if kind == "table_wise" else ranks)
        ]
        placements.append(Placement.model_validate({"table": table.name, "kind": kind, "shards": shards}))
    return ShardingPlan(world_size=ranks, workers_per_node=ranks, placements=tuple(placements))


def predicted(plan: ShardingPlan, cluster: Cluster) -> dict[str, float]:
    return predict_step(TABLES, plan, cluster, global_batch=BATCH)


def test_a_worker_whose_peers_wait_has_more_of_the_bus() -> None:
    # Eight cores of 20 GB/s on a bus that carries half of what they would take.
    cluster = host(8, 20e9, 80e9)
    assert topology_of(cluster, 8).idle_peer_factor == pytest.approx(0.5)
    spread = predicted(plan_of(8, [0, 1, 2, 3]), cluster)
    lopsided = predicted(plan_of(8, [0, 0, 0, 0]), cluster)
    assert lopsided["lookup"] == pytest.approx(4 * spread["lookup"])
    # Each of the four is a fourth of the lopsided one's load, and as quick as a core can be.
    wide = predicted(plan_of(8, [0, 1, 2, 3]), host(8))
    assert spread["lookup"] == pytest.approx(wide["lookup"])


def test_a_bus_that_all_workers_fill_is_shared() -> None:
    full, free = host(8, 20e9, 80e9), host(8)
    both = [predicted(plan_of(8, [0] * 4, "data_parallel"), cluster)["update"] for cluster in (full, free)]
    assert both[0] == pytest.approx(2 * both[1])


def test_more_processes_than_cores_conserve_work() -> None:
    cluster = host(2)
    two, four = topology_of(cluster, 2), topology_of(cluster, 4)
    assert (two.idle_peer_factor, four.idle_peer_factor) == (pytest.approx(1), pytest.approx(0.5))
    # All tables on one worker: its peers wait, so it has a core whatever their number.
    lone = [predicted(plan_of(ranks, [0] * 4), cluster)["lookup"] for ranks in (2, 4)]
    assert lone[1] == pytest.approx(lone[0])
    # All workers busy: two cores do the work, however it is spread.
    even = [
        predicted(plan_of(ranks, workers), cluster) for ranks, workers in ((2, [0, 1] * 2), (4, [0, 1, 2, 3]))
    ]
    assert even[1]["lookup"] == pytest.approx(even[0]["lookup"])
    assert even[1]["update"] == pytest.approx(even[0]["update"])


def test_a_phase_takes_what_its_host_has_to_do() -> None:
    topology = topology_of(host(2), 4)
    loads = np.zeros((4, NUM_PHASES))
    loads[:, 1] = 4.0, 0.0, 0.0, 0.0
    loads[:, 3] = 4.0, 4.0, 4.0, 0.0
    assert phase_seconds(topology, loads).tolist() == [0.0, 2.0, 0.0, 3.0]


def test_cut_rows_cost_their_senders() -> None:
    cluster = host(2)
    whole = predicted(plan_of(2, [0, 1, 0, 1]), cluster)
    cut = predicted(plan_of(2, [0, 0, 0, 0], "row_wise"), cluster)
    constants = topology_of(cluster, 2).constants
    ids = BATCH * len(TABLES)
    routed = constants.route_id_bytes * ids / 2 / (20e9 * constants.memory_fraction)
    assert cut["input"] - whole["input"] > routed
    assert cut["exchange"] > 2 * whole["exchange"]


def test_accelerators_share_nothing_and_route_for_free() -> None:
    topology = topology_of(catalog().cluster("zionex"), 2)
    assert topology.idle_peer_factor == 1.0
    assert topology.constants.route_id_bytes == topology.constants.piece_factor == 0
    assert topology.constants.copied_seconds == 0


def test_processes_of_a_host_exchange_vectors_and_few_of_them_sums_in_memory() -> None:
    eight, nine = topology_of(host(16), 8), topology_of(host(16), 9)
    assert nine.all_reduce.slope > 2 * eight.all_reduce.slope
    assert nine.all_to_all.slope < nine.all_reduce.slope / 4
    # Four processes on two cores each get half of what two do.
    two, four = topology_of(host(2), 2), topology_of(host(2), 4)
    assert four.all_to_all.slope == pytest.approx(two.all_to_all.slope * 2 * (3 / 4) / (1 / 2))


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_planner_knows_what_a_plan_costs_on_a_shared_host(ranks: int) -> None:
    cluster = host(2)
    plan = make_plan(TABLES, cluster, world_size=ranks, global_batch=BATCH, search=SearchSettings(steps=500))
    found = predicted(plan, cluster)
    assert found["step_seconds"] == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
    for other in (plan_of(ranks, [0] * 4), plan_of(ranks, [0, 1] * 2), plan_of(ranks, [0] * 4, "row_wise")):
        step = predicted(other, cluster)["step_seconds"]
        assert plan.estimate.lower_bound_seconds <= step * (1 + 1e-9)
        assert found["step_seconds"] <= step * (1 + 1e-9)


def test_loads_are_those_of_busy_peers() -> None:
    cluster = host(2)
    loads = predict_loads(TABLES, plan_of(4, [0] * 4), cluster, global_batch=BATCH)
    found = predicted(plan_of(4, [0] * 4), cluster)
    assert found["lookup"] == pytest.approx(loads[0, PHASES.index("lookup")] / 2)
