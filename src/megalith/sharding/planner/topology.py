"""The workers of a plan: what each has, which share a node, what a byte between them costs.

An accelerator is a worker. A processor is a host: one worker has it whole, several share its cores, memory
and bandwidth, and hand each other vectors and gradients in shared memory. A worker is priced as if the other
processes of its host, its peers, were as busy as it is; `idle_peer_factor` says how much quicker it is while
they wait. Costs of the exchanges come from `cost.collectives`; over a fixed group each is a latency and a
slope, so they are asked once and then used for any number of bytes.
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
class LinearCost:
    """Seconds of an exchange: `latency` + `slope` x bytes."""

    latency: float
    slope: float


@dataclass(frozen=True, slots=True)
class Topology:
    """The workers of a plan and what exchanges between them cost: workers [n * per_node, (n + 1) * per_node)
    share node n."""

    world_size: int
    per_node: int
    cluster: Cluster
    """As the workers see it: its devices are workers."""
    all_to_all: LinearCost
    """Bytes that one worker sends in equal parts to all."""
    all_reduce: LinearCost
    """Bytes of a vector that every worker holds."""
    in_node: LinearCost
    """Bytes of a vector that the workers of a node add up, each getting a part (or gather, for gradients)."""
    across_nodes: LinearCost
    """Bytes that one worker sends in equal parts to the workers of its position in all nodes."""
    idle_peer_factor: float = 1.0
    """Seconds of a load while the other processes of the host wait, over those while all are at work."""

    @property
    def device(self) -> Device:
        """What a worker is: an accelerator, or its part of a processor."""
        return self.cluster.device

    @property
    def constants(self) -> Calibration:
        """Of the cost model, for this device."""
        return calibration(self.device)

    @property
    def nodes(self) -> int:
        """Nodes that the workers are on; the last may have fewer of them."""
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


def topology_of(cluster: Cluster, world_size: int | None = None, per_node: int | None = None) -> Topology:
    """The first `world_size` workers of a cluster, filling node after node.

    >>> from megalith.hardware.catalog import catalog
    >>> topology = topology_of(catalog().cluster("zionex"), 16)
    >>> topology.world_size, topology.per_node, topology.nodes
    (16, 8, 2)
    """
    idle_peer_factor = 1.0
    if cluster.device.generation == "cpu":
        cluster, idle_peer_factor = _processes(cluster, world_size, per_node)
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
    topology = _priced(_first(cluster, size), size, idle_peer_factor)
    if cluster.device.generation == "cpu" and 1 < size == topology.per_node <= MOST_SUMMED_IN_MEMORY:
        constants = topology.constants
        handled = constants.written_factor + constants.added_factor * (size - 1)
        slope = stream_seconds(topology.device, constants, handled)
        topology = replace(topology, all_reduce=LinearCost(topology.all_to_all.latency, slope))
    return topology


def _processes(cluster: Cluster, world_size: int | None, per_node: int | None) -> tuple[Cluster, float]:
    """Processes on hosts, each with its part of the host's cores, memory and bandwidth; and
    `Topology.idle_peer_factor`: a process whose peers wait has a whole core, where there are fewer of them
    than processes, and of the bus what its cores can take."""
    hosts = cluster.devices
    if per_node is None:
        per_node = 1 if world_size is None else max(1, ceil(world_size / hosts))
    device = cluster.device
    shared, unshared = _row_rates(device, per_node)
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
    return processes, shared / unshared


def _row_rates(device: Device, per_node: int) -> tuple[float, float]:
    """Bytes per second of a process that works on rows: while all do, and while its peers wait."""
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


def _priced(cluster: Cluster, size: int, idle_peer_factor: float) -> Topology:
    fabric = near_fabric = Fabric(cluster)
    if cluster.device.generation == "cpu" and cluster.shared_memory is not None:
        host = replace(cluster.levels[0], link=cluster.shared_memory)
        near_fabric = Fabric(replace(cluster, levels=(host, *cluster.levels[1:])))
    per_node = min(cluster.levels[0].count, size)
    everyone: Group = tuple(LevelSpan(level.count, 1) for level in cluster.levels)
    inside: Group = everyone[:1]
    # One worker of each node in a group: all groups of a node share its outer link.
    across: Group = (LevelSpan(1, 1), *(LevelSpan(span.ranks, per_node) for span in everyone[1:]))
    together = per_node / size

    def exchange(sent: float) -> float:
        # What stays in the node goes over its own links, the rest leaves it; the slower of the two decides.
        near = all_to_all_seconds(near_fabric, inside, sent * together)
        return max(near, all_to_all_seconds(fabric, across, sent))

    return Topology(
        size,
        per_node,
        cluster,
        _linear_cost(exchange),
        _linear_cost(lambda sent: collective_seconds(fabric, "all_reduce", everyone, sent)),
        _linear_cost(lambda sent: collective_seconds(fabric, "reduce_scatter", inside, sent)),
        _linear_cost(lambda sent: all_to_all_seconds(fabric, across, sent)),
        idle_peer_factor,
    )


def _linear_cost(seconds: Callable[[float], float]) -> LinearCost:
    near, far = seconds(_LARGE), seconds(2 * _LARGE)
    latency = 2 * near - far
    # Twice the bytes may not take more than twice as long: then no line says what a few of them cost.
    assert latency >= -ROUNDING * far, f"{_LARGE:g} bytes take {near:g} s and twice as many {far:g} s"
    return LinearCost(max(0.0, latency), (far - near) / _LARGE)
