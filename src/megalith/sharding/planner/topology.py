"""The workers of a plan: what each has, which share a node, what a byte between them costs.

An accelerator is a worker. A processor is a host: one worker has it whole, several share its cores, memory
and bandwidth, and hand each other vectors and gradients in shared memory. A worker is priced as if its
neighbours were as busy as it is; `alone` says how much quicker it is while they wait. Costs
of the exchanges come from `cost.collectives`; over a fixed group each is a latency and a slope, so they are
asked once and then used for any number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from megalith.core.bounds import ROUNDING
from megalith.core.errors import PlanError
from megalith.cost.calibration import Calibration, calibration
from megalith.cost.collectives import Fabric, Group, LevelSpan, all_to_all_seconds, collective_seconds
from megalith.cost.operators import stream_seconds
from megalith.hardware.catalog import LOOPBACK, SHARED_MEMORY, catalog
from megalith.hardware.cluster import Cluster, Device, Level

MOST_SUMMED_IN_MEMORY = 8
"""Processes of a host up to which each adds up what all have written (comm/all_reduce.py)."""
_LARGE = 1e9


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of an exchange: `latency` + `slope` x bytes."""

    latency: float
    slope: float


@dataclass(frozen=True, slots=True)
class Workers:
    """`world_size` workers; [n * per_node, (n + 1) * per_node) share node n."""

    world_size: int
    per_node: int
    cluster: Cluster
    """As the workers see it: its devices are workers."""
    all_to_all: Line
    """Bytes that one worker sends in equal parts to all."""
    all_reduce: Line
    """Bytes of a vector that everybody holds."""
    inside: Line
    """Bytes of a vector that the workers of a node add up, each getting a part (or gather, the way back)."""
    across: Line
    """Bytes that one worker sends in equal parts to the workers of its position in all nodes."""
    alone: float = 1.0
    """Seconds of a load while the neighbours wait, of those while all are at work."""

    @property
    def device(self) -> Device:
        return self.cluster.device

    @property
    def constants(self) -> Calibration:
        return calibration(self.device)

    @property
    def nodes(self) -> int:
        return ceil(self.world_size / self.per_node)

    @property
    def whole_nodes(self) -> int:
        """Nodes with all their workers: only those take tables that are cut inside a node."""
        return self.world_size // self.per_node

    @property
    def slowest_link(self) -> str:
        """The outermost level that the workers cross."""
        used = [level.name for level in self.cluster.levels if level.count > 1]
        return used[-1] if used else self.cluster.levels[0].name


def workers_of(cluster: Cluster, world_size: int | None = None, per_node: int | None = None) -> Workers:
    """The first `world_size` workers of a cluster, filling node after node.

    >>> from megalith.hardware.catalog import catalog
    >>> found = workers_of(catalog().cluster("zionex"), 16)
    >>> found.world_size, found.per_node, found.nodes
    (16, 8, 2)
    """
    alone = 1.0
    if cluster.device.generation == "cpu":
        cluster, alone = _processes(cluster, world_size, per_node)
    elif per_node is not None:
        if per_node > cluster.levels[0].count:
            raise PlanError(
                f"{cluster.name or 'The cluster'} has {cluster.levels[0].count} devices a node, not "
                f"{per_node}; take --workers-per-node {cluster.levels[0].count} or less."
            )
        cluster = replace(cluster, levels=(replace(cluster.levels[0], count=per_node), *cluster.levels[1:]))
    size = cluster.devices if world_size is None else world_size
    if size > cluster.devices:
        raise PlanError(
            f"{cluster.name or 'The cluster'} has {cluster.devices:,} workers, not {size:,}; take "
            f"--world-size {cluster.devices} or describe a larger cluster in a YAML file."
        )
    workers = _priced(_first(cluster, size), size, alone)
    if cluster.device.generation == "cpu" and 1 < size == workers.per_node <= MOST_SUMMED_IN_MEMORY:
        constants = workers.constants
        handled = constants.written_factor + constants.added_factor * (size - 1)
        slope = stream_seconds(workers.device, constants, handled)
        workers = replace(workers, all_reduce=Line(workers.all_to_all.latency, slope))
    return workers


def _processes(cluster: Cluster, world_size: int | None, per_node: int | None) -> tuple[Cluster, float]:
    """Processes on hosts, each with its part of the host's cores, memory and bandwidth; and `Workers.alone`:
    a process whose neighbours wait has a whole core, where there are fewer of them than processes, and of the
    bus what its cores can take."""
    hosts = cluster.devices
    if per_node is None:
        per_node = 1 if world_size is None else max(1, ceil(world_size / hosts))
    device = cluster.device
    shared, alone = _row_rates(device, per_node)
    tiers = [
        replace(tier, bytes=tier.bytes // per_node, bytes_per_second=tier.bytes_per_second / per_node)
        for tier in device.memory
    ]
    tiers[0] = replace(tiers[0], bytes_per_second=shared)
    flops = {name: value / per_node for name, value in device.flops.items()}
    # Messages are copied and added up by the cores too.
    cores = min(1.0, device.cores / per_node) if device.cores else 1.0
    near, sockets = (
        replace(link, bytes_per_second=link.bytes_per_second * cores)
        for link in (
            cluster.shared_memory or catalog().link(SHARED_MEMORY),
            cluster.loopback or catalog().link(LOOPBACK),
        )
    )
    processes = replace(
        cluster,
        device=replace(device, memory=tuple(tiers), flops=flops),
        levels=(Level("host", per_node, sockets), *cluster.levels),
        shared_memory=near,
    )
    return processes, shared / alone


def _row_rates(device: Device, per_node: int) -> tuple[float, float]:
    """Bytes per second of a process that works on rows: while all do, and while its neighbours wait."""
    whole = device.bytes_per_second
    if not device.cores or not device.core_bytes_per_second:
        # Nothing is known of a core: all together are taken to reach what the memory gives.
        return whole / per_node, whole / min(per_node, device.cores or per_node)
    whole = min(whole, device.cores * device.core_bytes_per_second)
    threads = max(1.0, device.cores / per_node)
    return whole / per_node, min(threads * device.core_bytes_per_second, whole)


def _first(cluster: Cluster, size: int) -> Cluster:
    """The levels that `size` workers fill, from the innermost out."""
    levels, members = [], size
    for level in cluster.levels:
        levels.append(replace(level, count=min(level.count, members)))
        members = ceil(members / level.count)
    return replace(cluster, levels=tuple(levels))


def _priced(cluster: Cluster, size: int, alone: float) -> Workers:
    fabric = near_fabric = Fabric(cluster)
    if cluster.device.generation == "cpu" and cluster.shared_memory is not None:
        host = replace(cluster.levels[0], link=cluster.shared_memory)
        near_fabric = Fabric(replace(cluster, levels=(host, *cluster.levels[1:])))
    per_node = min(cluster.levels[0].count, size)
    everyone: Group = tuple(LevelSpan(level.count, 1) for level in cluster.levels)
    inside: Group = everyone[:1]
    # One worker of each node in a group: all groups of a node share its way out.
    across: Group = (LevelSpan(1, 1), *(LevelSpan(span.ranks, per_node) for span in everyone[1:]))
    together = per_node / size

    def exchange(sent: float) -> float:
        # What stays in the node goes over its own links, the rest leaves it; the slower of the two decides.
        near = all_to_all_seconds(near_fabric, inside, sent * together)
        return max(near, all_to_all_seconds(fabric, across, sent))

    return Workers(
        size,
        per_node,
        cluster,
        _line(exchange),
        _line(lambda sent: collective_seconds(fabric, "all_reduce", everyone, sent)),
        _line(lambda sent: collective_seconds(fabric, "reduce_scatter", inside, sent)),
        _line(lambda sent: all_to_all_seconds(fabric, across, sent)),
        alone,
    )


def _line(seconds: Callable[[float], float]) -> Line:
    near, far = seconds(_LARGE), seconds(2 * _LARGE)
    latency = 2 * near - far
    # Twice the bytes may not take more than twice as long: then no line says what a few of them cost.
    assert latency >= -ROUNDING * far, f"{_LARGE:g} bytes take {near:g} s and twice as many {far:g} s"
    return Line(max(0.0, latency), (far - near) / _LARGE)
