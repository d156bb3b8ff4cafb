"""The four decisions of a plan, as values.

DeviceLayout     which axis crosses which level (placement; layouts.py)
StateSharding    expert parallelism, and what replicas hold of weights, gradients and optimizer state
PipelineChoice   micro-batch, schedule, chunks, extra micro-batches in flight, recompute, layers of each stage
NetworkChoice    routing, collectives, multi-path, overlap, buckets, compression, local steps
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.explore.job import Collectives, Compression, Recompute, Routing, ScheduleName, Sharding
from megalith.explore.search.space.layouts import DeviceLayout


@dataclass(frozen=True, slots=True)
class StateSharding:
    """How replicas share the training state: expert parallelism, and the ZeRO stage or hybrid sharding."""

    ep: int
    strategy: Sharding
    shard_within: str | None = None
    """The level whose members each hold a whole copy; only of hybrid sharding."""


@dataclass(frozen=True, slots=True)
class PipelineChoice:
    """How micro-batches go through the pipeline: their size, schedule, chunks, recompute and layers."""

    micro_batch: int
    schedule: ScheduleName
    vpp: int = 1
    extra_in_flight: int = 0
    recompute: Recompute | None = None
    """None: the least that fits in memory."""
    layers_per_stage: tuple[int, ...] | None = None
    """None: the same number on every stage."""


@dataclass(frozen=True, slots=True)
class NetworkChoice:
    """How collectives use the network: routing, algorithm, paths, overlap, compression, local steps."""

    routing: Routing = "ecmp"
    collectives: Collectives = "auto"
    multipath: int = 1
    overlap: bool = True
    bucket_bytes: int = 40_000_000
    compression: Compression = "none"
    local_steps: int = 1


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A node of the search tree: the decisions taken so far. With all four it is a plan."""

    layout: DeviceLayout
    sharding: StateSharding | None = None
    pipeline: PipelineChoice | None = None
    network: NetworkChoice | None = None

    @property
    def complete(self) -> bool:
        """Whether all four decisions are taken."""
        return self.network is not None
