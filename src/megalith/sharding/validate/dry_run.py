"""N ranks in one process, without their tables: does a plan deliver, does it fit, is it balanced?

    checked = dry_run(tables, plan, cluster, global_batch=65536)
    checked.balance["lookups"]          # of the most loaded worker over the mean

A batch is routed to the workers as the runtime does it, and followed to the pooled output (`delivery.py`);
one rank then sends its part for real, over a fake process group of all N. Loads of the whole batch are those
that the statistics expect (`worker_loads.py`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from megalith.comm.context import CommContext
from megalith.comm.traffic import TrafficCounter
from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.hardware.cluster import Cluster
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Topology
from megalith.sharding.planner.types import PlanInputs, Workload
from megalith.sharding.runtime.input_dist.input_dist import InputDist
from megalith.sharding.validate.batches import IdBatch, first_samples, generated_batch
from megalith.sharding.validate.delivery import check_delivery, most_samples
from megalith.sharding.validate.worker_loads import StepLoads, WorkerLoad, step_loads
from megalith.sharding.wire_format import has_wide_ids


@dataclass(frozen=True)
class DryRun:
    """What a dry run of a plan has found, for every worker."""

    world_size: int
    workers_per_node: int
    num_tables: int
    global_batch: int
    samples_checked: int
    ids_checked: int
    device: str
    memory_capacity_bytes: dict[str, float]
    exchanged_bytes: dict[str, float]
    """All workers together, by what travels."""
    largest_link: dict[str, float]
    """Sender, receiver and bytes of the pair of workers that exchange most."""
    balance: dict[str, float]
    """Most loaded over mean: lookups, sent, received and memory bytes."""
    batch_lookups_balance: float
    """That of the lookups in the batch that was followed, noise and all."""
    first_rank_index_bytes: int
    """What rank 0 sent over the fake process group: ids of its part of the batch."""
    workers: tuple[WorkerLoad, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def dry_run(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer: str = "rowwise_adagrad",
    batch: IdBatch | None = None,
    adaptive_share: float = 1.0,
) -> DryRun:
    """Checks the plan for all its workers; PlanError says what is wrong with it.

    `batch` is `values` and `offsets` of some samples; without it one is drawn from the statistics.
    `adaptive_share` is what adaptive tables take of their bytes as dense ones.
    """
    begin = time.perf_counter()
    with _no_collector():
        inputs = plan_inputs(
            tables,
            cluster,
            Workload(global_batch, optimizer, plan.exchange),
            world_size=plan.world_size,
            workers_per_node=min(plan.workers_per_node, plan.world_size),
            statistics=statistics,
            adaptive_share=adaptive_share,
        )
        plan.check(tables)
        if global_batch < plan.world_size:
            raise PlanError(
                f"A batch of {global_batch} samples leaves some of {plan.world_size} workers without any; "
                f"take a batch of {plan.world_size} or more."
            )
        return _checked(inputs, plan, batch, begin)


def _checked(inputs: PlanInputs, plan: ShardingPlan, batch: IdBatch | None, begin: float) -> DryRun:
    layout, device = ExchangeLayout(inputs.tables, plan), inputs.topology.device
    most = min(most_samples(layout), inputs.workload.global_batch)
    values, offsets = (
        generated_batch(inputs.tables, inputs.statistics, most)
        if batch is None
        else first_samples(batch, len(layout.features), most)
    )
    looked_up = check_delivery(inputs.tables, layout, values, offsets)
    samples = (len(offsets) - 1) // len(layout.features)
    replicated = _replicated_ids(layout, offsets)
    loads = step_loads(inputs, plan, layout)
    _check_memory(loads.workers, inputs.topology)
    sender, receiver = np.unravel_index(int(loads.between.argmax()), loads.between.shape)
    return DryRun(
        world_size=plan.world_size,
        workers_per_node=plan.workers_per_node,
        num_tables=len(inputs.tables),
        global_batch=inputs.workload.global_batch,
        samples_checked=samples,
        ids_checked=len(values),
        device=device.name,
        memory_capacity_bytes={tier.name: float(tier.bytes) for tier in device.memory},
        exchanged_bytes=loads.exchanged_bytes,
        largest_link={"from": int(sender), "to": int(receiver), "bytes": float(loads.between.max())},
        balance=_balance(loads),
        batch_lookups_balance=_ratio(looked_up + replicated / plan.world_size),
        first_rank_index_bytes=_send_as_first(layout, (values, offsets), samples, inputs.tables),
        workers=loads.workers,
        seconds=time.perf_counter() - begin,
    )


def _balance(loads: StepLoads) -> dict[str, float]:
    """Most loaded over mean."""
    workers = loads.workers
    return {
        "lookups": _ratio(np.array([load.lookups for load in workers])),
        "sent_bytes": _ratio(np.array([load.sent_bytes for load in workers])),
        "received_bytes": _ratio(np.array([load.received_bytes for load in workers])),
        "memory_bytes": _ratio(np.array([sum(load.memory_bytes.values()) for load in workers])),
    }


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small objects are made and none of them in a cycle: looking for cycles would take a third
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def fake_ranks(world_size: int) -> Iterator[dist.ProcessGroup]:
    """A process group of so many ranks of which this process is the first; its collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise PlanError("A dry run needs a process of its own; start it without torchrun.")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


def _send_as_first(layout: ExchangeLayout, batch: IdBatch, samples: int, tables: Sequence[TableSpec]) -> int:
    """Bytes that rank 0 sends of its part of a batch, as the runtime counts them."""
    if layout.world_size == 1:
        return 0
    own = max(1, samples // layout.world_size)
    values, offsets = first_samples(batch, len(layout.features), own)
    traffic = TrafficCounter()
    with fake_ranks(layout.world_size) as group:
        input_dist = InputDist(
            layout, 0, CommContext.over(group, traffic), wide_ids=has_wide_ids(tables), deduplicate=False
        )
        input_dist.send(torch.from_numpy(values), torch.from_numpy(offsets))
    return traffic.total_bytes


def _check_memory(loads: Sequence[WorkerLoad], topology: Topology) -> None:
    for tier in topology.device.memory:
        fullest = max(loads, key=lambda load: load.memory_bytes[tier.name])
        needed = fullest.memory_bytes[tier.name]
        if needed > tier.bytes:
            raise PlanError(
                f"Worker {fullest.worker} needs {format_bytes(needed)} of {tier.name} and a "
                f"{topology.device.name} has {format_bytes(tier.bytes)}, {format_bytes(needed - tier.bytes)} "
                "too much; make the plan again for this hardware with `megalith plan`, or take more workers."
            )


def _replicated_ids(layout: ExchangeLayout, offsets: NDArray[np.int64]) -> float:
    """Ids of a batch that are looked up where their samples are."""
    features = {feature: position for position, feature in enumerate(layout.features)}
    edges = offsets[:: (len(offsets) - 1) // len(features)]
    positions = [features[name] for table in layout.replicated for name in table.features]
    return float(sum(edges[position + 1] - edges[position] for position in positions))


def _ratio(loads: NDArray[Any]) -> float:
    mean = float(loads.mean())
    return float(loads.max()) / mean if mean else 1.0
