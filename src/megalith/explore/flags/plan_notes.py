"""What both trainers' files say of a plan: headline, network settings, hosts, and what no flag expresses."""

from __future__ import annotations

from math import prod

from megalith.core.errors import PlanError
from megalith.explore.flags.ranks import HostRanks, axis_sizes, processes_per_host
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.load import resolve_cluster
from megalith.explore.placement import group
from megalith.explore.plan import Plan, make_plan
from megalith.explore.prediction import Prediction


def plan_of(job: Job) -> tuple[TransformerModel, Parallel]:
    """The two parts that flags are written from, or a sentence about what is missing."""
    if not isinstance(job.model, TransformerModel):
        raise PlanError(f"Job '{job.name}' is a {job.model.kind}; flags are written for transformers only.")
    if job.parallel is None:
        raise PlanError(f"Job '{job.name}' has no parallel section; run `megalith explore search` for one.")
    return job.model, job.parallel


def predicted_plan(job: Job, prediction: Prediction) -> Plan:
    """The plan that was simulated: what a job leaves open is as the prediction filled it."""
    _, parallel = plan_of(job)
    micro_batch = parallel.micro_batch or prediction.micro_batch
    return make_plan(job, micro_batch, job.training.recompute or prediction.recompute)


def headline(job: Job, prediction: Prediction, trainer: str) -> list[str]:
    """Lines that say what the file is and what it should reach."""
    model, parallel = plan_of(job)
    axes = " ".join(f"{axis}={size}" for axis, size in axis_sizes(parallel).items() if size > 1) or "dp=1"
    devices = prod(axis_sizes(parallel).values())
    where = f" on {job.cluster.name}" if job.cluster.name else ""
    name = job.name or model.name or "a transformer"
    return [
        f"{name}{where}: {devices} {job.cluster.device}, for {trainer}.",
        f"Plan: {axes}{f' ep={parallel.ep}' if parallel.ep > 1 else ''}, {job.training.schedule}, "
        f"micro-batch {prediction.micro_batch}, {parallel.sharding} sharding, "
        f"placement {' '.join(parallel.placement)} from the inside out.",
        f"Predicted step: {prediction.step_seconds:.4g} s, MFU {prediction.mfu:.1%}, "
        f"give or take {prediction.uncertainty:.0%}.",
    ]


def network_settings(job: Job, missing: list[str]) -> dict[str, str]:
    """The network part of a plan as NCCL's environment variables; what it has none for goes to `missing`."""
    settings = {}
    network = job.network
    if network.multipath > 1:
        settings["NCCL_IB_QPS_PER_CONNECTION"] = str(network.multipath)
        settings["NCCL_IB_SPLIT_DATA_ON_QPS"] = "1"
    if network.routing == "adaptive":
        settings["NCCL_IB_ADAPTIVE_ROUTING"] = "1"
    elif network.routing == "spray":
        missing.append("routing=spray is a setting of switches and adapters, not of NCCL: turn it on there.")
    if network.collectives == "flat":
        settings["NCCL_ALGO"] = "Ring"
    elif network.collectives == "hierarchical":
        missing.append(
            "collectives=hierarchical: NCCL has no all-gather or reduce-scatter by levels and picks its own "
            "algorithm; neither trainer reduces in two tiers but with hybrid sharding."
        )
    return settings


def host_count(job: Job) -> tuple[int, int]:
    """Hosts, and processes on each."""
    _, parallel = plan_of(job)
    each = processes_per_host(job)
    return prod(axis_sizes(parallel).values()) // each, each


def placement_note(ranks: HostRanks | None, job: Job) -> str | None:
    """The sentence for a placement that no numbering of the hosts reaches; None if one does."""
    if ranks is not None:
        return None
    _, parallel = plan_of(job)
    return (
        f"placement {' '.join(parallel.placement)}: devices of one host would need ranks that are not "
        "neighbours; ranks run in the trainer's order, so expect another step time."
    )


def sharded_copies(job: Job) -> int:
    """Whole copies of the sharded state: above 1 only in hybrid sharding, where they lie across the members
    of `shard_within`."""
    _, parallel = plan_of(job)
    if parallel.sharding != "hybrid":
        return 1
    cluster = resolve_cluster(job.cluster, job.hardware)
    names = [level.name for level in cluster.levels]
    level = names.index(parallel.shard_within) if parallel.shard_within in names else len(names) - 1
    return prod(span.ranks for span in group(parallel, cluster, ("dp", "cp"))[level:])
