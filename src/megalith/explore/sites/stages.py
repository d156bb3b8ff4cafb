"""One pipeline over several sites: each pipeline rank has the costs of its own site, and each boundary
between sites the link of that pair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from megalith.explore.cost.stages import stage_seconds
from megalith.explore.cost.step import plan_cost
from megalith.explore.cost.transfers import StageTransfers, with_blocking_sends
from megalith.explore.job import Job, Parallel
from megalith.explore.pipeline.costs import StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.placement import boundary
from megalith.explore.plan import Plan, make_plan
from megalith.explore.sites.shares import layers_by_speed, members_per_site
from megalith.explore.sites.virtual import job_beside
from megalith.hardware.sites import LEVEL_NAME, SiteCluster


@dataclass(frozen=True, slots=True)
class SiteStages:
    """A pipeline over sites: the plan of every site, and which pipeline ranks it has."""

    sites: SiteCluster
    plans: tuple[Plan, ...]
    """By site: the whole pipeline as if all sites were like it."""
    ranks: tuple[range, ...]
    """By site: its pipeline ranks."""

    def site_of(self, rank: int) -> int:
        """The site of a pipeline rank."""
        return next(site for site, ranks in enumerate(self.ranks) if rank in ranks)


def stage_plans(
    job: Job, sites: SiteCluster, parallel: Parallel, micro_batch: int, recompute: str
) -> SiteStages:
    """The plans of a pipeline over all sites, its layers split by the speed of their devices."""
    held = members_per_site(parallel, sites, "pp")
    ring = sites.ring()
    starts = [sum(held[:site]) for site in range(len(held))]
    ranks = tuple(range(start, start + count) for start, count in zip(starts, held, strict=True))

    def plan(site: int, layers: tuple[int, ...]) -> Plan:
        copies = -(-parallel.pp // held[site])
        changed = parallel.model_copy(update={"layers_per_stage": layers})
        return make_plan(job_beside(job, site, ring, max(2, copies), changed), micro_batch, recompute)

    # One layer and a head on the last rank of the pipeline, to learn what each takes on every site.
    stages = parallel.pp * parallel.vpp
    model = job.model
    total = model.layers  # type: ignore[union-attr]
    even = tuple(total // stages + (stage < total % stages) for stage in range(stages))
    layer, head = [0.0] * parallel.pp, [0.0] * parallel.pp
    for site, own in enumerate(ranks):
        seconds = stage_seconds(plan(site, even))
        middle = seconds[min(1, stages - 1)].total / max(1, even[min(1, stages - 1)])
        for rank in own:
            layer[rank] = middle
            head[rank] = max(0.0, seconds[-1].total - middle * even[-1])
    layers = layers_by_speed(model, parallel, layer, head)  # type: ignore[arg-type]
    return SiteStages(sites, tuple(plan(site, layers) for site in range(len(held))), ranks)


def stage_costs(pipeline: SiteStages) -> tuple[Schedule, StepCosts]:
    """The order that is simulated and its costs, each of the site where it is paid."""
    first = pipeline.plans[0]
    parallel = first.parallel
    name = first.schedule
    if name == "greedy":
        name = "1f1b" if parallel.vpp == 1 else "breadth-first"
    options = parallel.pp, first.micro_batches, parallel.vpp, first.extra_in_flight
    schedule = build_schedule(name, *options)
    whole = [plan_cost(replace(plan, waits_for_transfers=False), schedule) for plan in pipeline.plans]
    site_of = [pipeline.site_of(rank) for rank in range(parallel.pp)]
    own = [whole[site_of[rank]] for rank in schedule.placement]
    stages = tuple(cost.stages[stage] for stage, cost in enumerate(own))
    forward, backward = _transfers(pipeline, schedule)
    if first.waits_for_transfers:
        stages = with_blocking_sends(stages, StageTransfers(forward, backward, {}))
        forward = backward = ()
    chunks = [(rank, chunk) for rank, held in enumerate(schedule.chunk_stages) for chunk in range(len(held))]
    costs = StepCosts(
        forward=tuple(stage.forward for stage in stages),
        backward_input=tuple(stage.backward_input for stage in stages),
        backward_weight=tuple(stage.backward_weight for stage in stages),
        forward_transfers=forward,
        backward_transfers=backward,
        gradient={key: of for key in chunks if (of := whole[site_of[key[0]]].costs.gradient.get(key))},
        parameters={key: of for key in chunks if (of := whole[site_of[key[0]]].costs.parameters.get(key))},
        optimizer_seconds=tuple(
            whole[site_of[rank]].costs.optimizer_seconds[rank] for rank in range(parallel.pp)
        ),
        overlap=whole[0].costs.overlap,
        forward_backward=whole[0].costs.forward_backward,
    )
    if first.schedule == "long-link":
        schedule = build_schedule(first.schedule, *options, costs=costs)
    return schedule, costs


def _transfers(
    pipeline: SiteStages, schedule: Schedule
) -> tuple[tuple[Transfer | None, ...], tuple[Transfer | None, ...]]:
    per_stream = len(schedule.placement) // schedule.streams
    forward: list[Transfer | None] = []
    backward: list[Transfer | None] = []
    for index, (sender, receiver) in enumerate(pairwise(schedule.placement)):
        ends_here = (index + 1) % per_stream == 0
        forward.append(None if ends_here else _transfer(pipeline, sender, receiver))
        backward.append(None if ends_here else _transfer(pipeline, receiver, sender))
    return tuple(forward), tuple(backward)


def _transfer(pipeline: SiteStages, sender: int, receiver: int) -> Transfer | None:
    """The message from one pipeline rank to another, inside a site or between two."""
    here, there = pipeline.site_of(sender), pipeline.site_of(receiver)
    plan = pipeline.plans[here]
    size = message_bytes(plan)
    if here == there:
        start = pipeline.ranks[here].start
        crossed = boundary(plan.parallel, plan.cluster, sender - start, receiver - start)
        if crossed.level < 0:
            return None
        rate = plan.fabric.rate(crossed.level, crossed.sharing)
        link = (here, plan.cluster.levels[crossed.level].name, crossed.member)
        return Transfer(
            link, size / rate, plan.fabric.latency(crossed.level) + plan.constants.transfer_seconds
        )
    level = replace(pipeline.sites.between(here, there), name=LEVEL_NAME)
    outermost = len(plan.cluster.levels) - 1
    cluster = replace(plan.cluster, levels=(*plan.cluster.levels[:outermost], level))
    fabric = replace(plan.fabric, cluster=cluster)
    parallel = plan.parallel
    rate = fabric.rate(outermost, parallel.tp * parallel.cp * parallel.dp)
    latency = fabric.latency(outermost) + plan.constants.transfer_seconds
    return Transfer((LEVEL_NAME, here, there), size / rate, latency)


def message_bytes(plan: Plan) -> float:
    """What one rank of a stage sends to the next for a micro-batch."""
    model, shape = plan.transformer, plan.shape
    size = 4.0 if plan.precision == "fp32" else 2.0
    return size * model.seq * shape.micro_batch / shape.cp * model.hidden / shape.tp
