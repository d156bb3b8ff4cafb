"""How training across sites is done in production: sharded data parallelism across sites, at its best.

Copies of the model lie on different sites and gradients alone cross. A site shards its copy among its
devices (hybrid), or all copies shard the optimizer state (ZeRO-1, as Megatron's distributed optimizer
does). Inside, the pipeline is Megatron's interleaved 1F1B (plain 1F1B where that does not divide, none
where none is needed). The network is used as it comes: ECMP; the collectives that NCCL has, or level by
level where that is better. Within this everything is chosen as a careful engineer would: tensor,
context, expert and pipeline parallelism, their order inside a site, chunks, micro-batch, recompute; the
best plan of all these is the baseline.
"""

from __future__ import annotations

from dataclasses import replace

from megalith.core.errors import PlanError
from megalith.explore.job import Job, Routing
from megalith.explore.load import resolve_cluster
from megalith.explore.scenarios.crosspipe import USUAL_PATHS
from megalith.explore.search.cluster_search import search_job
from megalith.explore.search.result import RankedPlan
from megalith.explore.search.space.baseline_layouts import replicas_across_sites
from megalith.explore.search.space.decisions import NetworkChoice
from megalith.explore.search.space.restriction import Restriction
from megalith.hardware.cluster import Cluster

NETWORKS = (
    NetworkChoice("ecmp", "auto", multipath=USUAL_PATHS),
    NetworkChoice("ecmp", "hierarchical", multipath=USUAL_PATHS),
)


def production(job: Job, *, workers: int = 1, budget: float = 1500, routing: Routing = "ecmp") -> RankedPlan:
    """The best production-like plan; PlanError if none fits."""
    only = production_space(resolve_cluster(job.cluster, job.hardware))
    only = replace(only, networks=tuple(replace(network, routing=routing) for network in only.networks))
    result = search_job(job, only=only, workers=workers, budget=budget)
    if not result.plans:
        raise PlanError(
            f"{job.name or 'The job'} has no copy of the model that fits in one site; take larger sites."
        )
    return result.plans[0]


def production_space(cluster: Cluster) -> Restriction:
    """What production chooses from."""
    return replace(replicas_across_sites(cluster), networks=NETWORKS)
