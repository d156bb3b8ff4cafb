"""The workers of a plan: what each has, which share a node, what a byte between them costs.

An accelerator is a worker. A processor is a host: one worker has it whole, several share its cores, memory
and bandwidth and talk over its loopback. Costs of the exchanges come from `cost.collectives`; over a fixed
group each is a latency and a slope, so they are asked once and then used for any number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from megalith.core.errors import PlanError
from megalith.cost.calibration import Calibration, calibration
from megalith.cost.collectives import Fabric, Group, Span, all_to_all_seconds, collective_seconds
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster, Device, Level

LOOPBACK = "loopback"
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
    if cluster.device.generation == "cpu":
        cluster = _processes(cluster, world_size, per_node)
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
    return _priced(_first(cluster, size), size)


def _processes(cluster: Cluster, world_size: int | None, per_node: int | None) -> Cluster:
    """Processes on hosts: each gets its part of the host's cores, memory and bandwidth."""
    hosts = cluster.devices
    if per_node is None:
        per_node = 1 if world_size is None else max(1, ceil(world_size / hosts))
    device = cluster.device
    if per_node > 1:
        tiers = tuple(
            replace(tier, bytes=tier.bytes // per_node, bytes_per_second=tier.bytes_per_second / per_node)
            for tier in device.memory
        )
        flops = {name: value / per_node for name, value in device.flops.items()}
        device = replace(device, memory=tiers, flops=flops)
    inner = Level("host", per_node, catalog().link(LOOPBACK))
    return replace(cluster, device=device, levels=(inner, *cluster.levels))


def _first(cluster: Cluster, size: int) -> Cluster:
    """The levels that `size` workers fill, from the innermost out."""
    levels, members = [], size
    for level in cluster.levels:
        levels.append(replace(level, count=min(level.count, members)))
        members = ceil(members / level.count)
    return replace(cluster, levels=tuple(levels))


def _priced(cluster: Cluster, size: int) -> Workers:
    fabric = Fabric(cluster)
    per_node = min(cluster.levels[0].count, size)
    everyone: Group = tuple(Span(level.count, 1) for level in cluster.levels)
    inside: Group = everyone[:1]
    # One worker of each node in a group: all groups of a node share its way out.
    across: Group = (Span(1, 1), *(Span(span.ranks, per_node) for span in everyone[1:]))
    together = per_node / size

    def exchange(sent: float) -> float:
        # What stays in the node goes over its own links, the rest leaves it; the slower of the two decides.
        near = all_to_all_seconds(fabric, inside, sent * together)
        return max(near, all_to_all_seconds(fabric, across, sent))

    return Workers(
        size,
        per_node,
        cluster,
        _line(exchange),
        _line(lambda sent: collective_seconds(fabric, "all_reduce", everyone, sent)),
        _line(lambda sent: collective_seconds(fabric, "reduce_scatter", inside, sent)),
        _line(lambda sent: all_to_all_seconds(fabric, across, sent)),
    )


def _line(seconds: Callable[[float], float]) -> Line:
    near, far = seconds(_LARGE), seconds(2 * _LARGE)
    return Line(max(0.0, 2 * near - far), (far - near) / _LARGE)
