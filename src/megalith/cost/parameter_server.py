"""An asynchronous parameter-server system on processors: what Neo's synchronous training is compared with.

Trainers are hosts that compute layers on small batches of their own; servers are hosts that hold tables, pool
rows for trainers and apply their gradients as they come. Nothing waits for anything, so that the rate is that
of whatever is exhausted first:

    layers      three passes over the FLOPs of a sample on a trainer
    link        a trainer's: data and pooled vectors in, ids and gradients out
    servers     rows read and updated in their memory; vectors and gradients over their links

It is an upper limit: loads are even, the servers of dense weights and stale gradients cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from megalith.core.errors import PlanError
from megalith.cost.calibration import calibration
from megalith.cost.embedding import CACHE_SHARE, VECTOR_BYTES, lookup_bytes, update_bytes
from megalith.cost.ingestion import ID_BYTES, LINK_SHARE
from megalith.cost.operators import mlp_seconds, stream_seconds
from megalith.hardware.cluster import Cluster

PASSES = 3
"""Forward, and twice as much backward."""


@dataclass(frozen=True, slots=True)
class ParameterServerTable:
    """What the servers keep of one table, and what a sample asks of it."""

    bytes: float
    """Of rows and optimizer state, all of them."""
    ids: float
    dim: int
    element_bytes: int
    state_bytes: float
    """Of a row."""
    vectors: float
    """That a sample gets of it: one for each feature, or for each id where none are pooled."""


@dataclass(frozen=True, slots=True)
class ParameterServerSystem:
    """Hosts of one, and the samples a second that they reach at most."""

    trainers: int
    servers: int
    samples_per_second: float
    bound_by: str
    trainer_samples_per_second: float
    """Of one trainer, while the servers keep up."""
    watts: float

    def to_dict(self) -> dict[str, Any]:
        """As `megalith plan --json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


def parameter_server_system(
    tables: list[ParameterServerTable],
    hosts: Cluster,
    *,
    trainers: int,
    flops_per_sample: float,
    sample_bytes: float,
    servers: int | None = None,
) -> ParameterServerSystem:
    """`servers` are as many as hold the tables in memory and keep up with the trainers, unless a number is
    asked for."""
    device, link = hosts.device, hosts.front_end or hosts.levels[0].link
    if device.generation != "cpu":
        raise PlanError(
            f"{hosts.name or 'The cluster'} has {device.name}, and a parameter-server system is one of "
            "processors; take --against cpu-servers or describe such a cluster."
        )
    constants = calibration(device)
    needed = ceil(sum(table.bytes for table in tables) / (CACHE_SHARE * device.bytes))
    if servers is not None and servers < needed:
        raise PlanError(f"The tables need {needed:,} servers, not {servers:,}; take --servers {needed}.")
    reached = LINK_SHARE * link.bytes_per_second
    pooled = float(sum(VECTOR_BYTES * table.dim * table.vectors for table in tables))
    ids = ID_BYTES * sum(table.ids for table in tables)
    layers = mlp_seconds(device, constants, "fp32", PASSES * flops_per_sample)
    of_trainer = {"layers": layers, "trainers' links": max(sample_bytes + pooled, ids + pooled) / reached}
    moved = 0.0
    for table in tables:
        # Batches of such systems are small: within one, ids hardly repeat.
        counts = (table.ids, table.ids, table.vectors, table.dim, table.element_bytes)
        moved += lookup_bytes(constants, *counts) + update_bytes(constants, *counts, table.state_bytes)
    of_server = {
        "servers' memory": stream_seconds(device, constants, moved),
        "servers' links": (pooled + ids) / reached,
    }
    of_all = max(of_trainer.values()) / trainers
    count = servers or max(1, needed, ceil(max(of_server.values()) / of_all))
    seconds = {name: own / trainers for name, own in of_trainer.items()}
    seconds |= {name: own / count for name, own in of_server.items()}
    slowest = max(seconds, key=seconds.__getitem__)
    return ParameterServerSystem(
        trainers,
        count,
        1 / seconds[slowest],
        slowest,
        1 / max(of_trainer.values()),
        (trainers + count) * device.watts,
    )
