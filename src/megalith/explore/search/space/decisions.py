"""The four decisions of a plan, as values.

Layout    which axis crosses which level (placement; layouts.py)
Sharing   expert parallelism, and what copies hold of weights, gradients and optimizer state
Rhythm    micro-batch, schedule, chunks, extra micro-batches in flight, recompute, layers of each stage
Fabric    routing, collectives, multi-path, overlap, buckets, compression, local steps (network)
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.explore.job import Collectives, Compression, Recompute, Routing, ScheduleName, Sharding
from megalith.explore.search.space.layouts import Layout


@dataclass(frozen=True, slots=True)
class Sharing:
    ep: int
    sharding: Sharding
    shard_within: str | None = None


@dataclass(frozen=True, slots=True)
class Rhythm:
    micro_batch: int
    schedule: ScheduleName
    vpp: int = 1
    extra_in_flight: int = 0
    recompute: Recompute | None = None
    layers_per_stage: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Fabric:
    routing: Routing = "ecmp"
    collectives: Collectives = "auto"
    multipath: int = 1
    overlap: bool = True
    bucket_bytes: int = 40_000_000
    compression: Compression = "none"
    local_steps: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A node of the tree: the decisions taken so far. With all four it is a plan."""

    layout: Layout
    sharing: Sharing | None = None
    rhythm: Rhythm | None = None
    fabric: Fabric | None = None

    @property
    def complete(self) -> bool:
        return self.fabric is not None
