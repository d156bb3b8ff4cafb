"""Whole replicas on each of several sites: gradients, and what else replicas share, cross between them.

Each site is predicted as if all sites were like it, with its own share of the batch, over the ring that joins
them; the slowest site's step is the step. Where all sites are alike this is the prediction of one cluster.
"""

from __future__ import annotations

from megalith.explore.cost.stages import stage_seconds
from megalith.explore.job import Job, Parallel
from megalith.explore.plan import Plan, make_plan
from megalith.explore.sites.shares import members_per_site, samples_by_speed
from megalith.explore.sites.virtual import job_beside
from megalith.hardware.sites import SiteCluster


def replica_plans(
    job: Job, sites: SiteCluster, parallel: Parallel, micro_batch: int, recompute: str
) -> list[Plan]:
    """The plan of every site; PlanError where batch and devices do not divide."""
    count = len(sites.sites)
    ring = sites.ring(repeated=parallel.sharding in ("zero2", "zero3"))
    held = members_per_site(parallel, sites, "dp")
    interleaved = job.training.schedule == "interleaved"
    units = [replicas * micro_batch * (parallel.pp if interleaved else 1) for replicas in held]

    def plan(site: int, samples: int) -> Plan:
        """The plan on sites like this one, each with so many samples."""
        changed = parallel.model_copy(update={"dp": held[site] * count, "global_batch": samples * count})
        return make_plan(job_beside(job, site, ring, count, changed), micro_batch, recompute)

    seconds = [_round_seconds(plan(site, unit)) for site, unit in enumerate(units)]
    samples = samples_by_speed(parallel, units, seconds)
    return [plan(site, share) for site, share in enumerate(samples)]


def _round_seconds(plan: Plan) -> float:
    """All micro-batches of a round through the busiest pipeline rank."""
    stages, pp = stage_seconds(plan), plan.parallel.pp
    return plan.micro_batches * max(sum(stage.total for stage in stages[rank::pp]) for rank in range(pp))
