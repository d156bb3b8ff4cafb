"""A transformer job with every setting decided: the input of the cost model.

`make_plan` checks the job's figures against each other and fills in what a job leaves open and no search is
needed for. Errors are one sentence with the nearest change that would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from megalith.core.errors import ConfigError, PlanError
from megalith.cost.calibration import Calibration
from megalith.cost.collectives import Fabric, group_size
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.load import resolve_cluster
from megalith.explore.placement import check_devices, expert_groups, expert_tensor_size, group
from megalith.explore.stacks import Stack, default_stack, load_stack
from megalith.explore.workload import LayerShape
from megalith.hardware.cluster import Cluster


def stack_of(job: Job) -> Stack:
    """The software that trains a job: the one it names, else the default of its device."""
    device = resolve_cluster(job.cluster, job.hardware).device
    return load_stack(job.training.stack or default_stack(device))


def uses_flash(job: Job) -> bool:
    """Whether the attention of a job is fused, by its own word or by its stack's."""
    attention = job.training.attention
    return (stack_of(job).traits.attention if attention == "auto" else attention) == "flash"


@dataclass(frozen=True, slots=True)
class Plan:
    """A transformer job with every setting decided.

    `make_plan` makes it; `explore.cost` turns it into the costs of a step.
    """

    transformer: TransformerModel
    cluster: Cluster
    parallel: Parallel
    fabric: Fabric
    shape: LayerShape
    layers_per_stage: tuple[int, ...]
    micro_batches: int
    precision: str
    recompute: str
    schedule: str
    extra_in_flight: int
    overlap: bool
    tensor_overlap: bool
    waits_for_transfers: bool
    """A device computes nothing while it sends to the next stage."""
    sharding: str
    shard_level: int
    """The level across whose members hybrid sharding keeps whole copies."""
    shards: int
    """Ranks that share one copy of the training state."""
    bucket_bytes: int
    compression: str
    local_steps: int
    memory_margin: float
    stack: Stack
    offload: str = "none"
    offload_share: float = 1.0
    """Of the layers' activations, what goes to the host."""

    @property
    def constants(self) -> Calibration:
        """Fitted constants of the cost model for the plan's device and stack."""
        return self.fabric.constants


def make_plan(job: Job, micro_batch: int, recompute: str, sharding: str | None = None) -> Plan:
    """The plan of a job with these three settings; ConfigError or PlanError says what does not divide and
    what would."""
    parallel, model = job.parallel, job.model
    if not isinstance(model, TransformerModel) or parallel is None:
        raise ConfigError("job: key 'parallel' is missing; add it, or let `megalith explore search` find it.")
    cluster = resolve_cluster(job.cluster, job.hardware)
    stack = stack_of(job)
    traits = stack.traits
    parallel = _expert_cut(model, parallel, traits.expert_tp)
    _check(model, parallel, cluster)
    layers = layers_of(model, parallel)
    training = job.training
    _check_chunks(training.schedule, parallel.vpp)
    _check_rounds(job, parallel, micro_batch)
    # What a job leaves out is as its stack does it.
    overlap = training.overlap if "overlap" in training.model_fields_set else traits.overlap
    by_stack = training.tensor_overlap == "auto" and traits.tensor_overlap
    sharding = sharding or parallel.sharding
    level, shards = _shards(parallel, cluster, sharding)
    return Plan(
        transformer=model,
        cluster=cluster,
        parallel=parallel,
        fabric=Fabric(
            cluster,
            job.network.routing,
            job.network.multipath,
            job.network.collectives,
            software=stack.constants(cluster.device, training.precision, model.experts > 0),
        ),
        shape=LayerShape(
            parallel.tp,
            parallel.cp,
            parallel.ep,
            micro_batch,
            parallel.sequence_parallel and parallel.tp > 1,
            uses_flash(job) or parallel.cp > 1,
            expert_tensor_size(parallel) if model.experts else 0,
            modules=training.recompute_modules or (traits.modules if uses_flash(job) else ()),
            selective=traits.selective,
            fused_loss=traits.fused_loss,
            narrow_dispatch=traits.narrow_dispatch,
        ),
        layers_per_stage=layers,
        micro_batches=micro_batches_of(parallel, micro_batch),
        precision=training.precision,
        recompute=recompute,
        schedule=training.schedule,
        extra_in_flight=training.extra_in_flight,
        overlap=overlap,
        tensor_overlap=(by_stack or training.tensor_overlap == "ring") and parallel.sequence_parallel,
        waits_for_transfers=traits.waits_for_transfers and "overlap" not in training.model_fields_set,
        sharding=sharding,
        shard_level=level,
        shards=shards,
        bucket_bytes=training.bucket_bytes,
        compression=training.compression,
        local_steps=training.local_steps,
        memory_margin=job.constraints.memory_margin,
        stack=stack,
        offload=training.offload,
        offload_share=training.offload_share,
    )


def _expert_cut(model: TransformerModel, parallel: Parallel, ranks: int | None) -> Parallel:
    """The ranks that cut an expert, as the stack's recipes have them where the job leaves them out."""
    if not model.experts or ranks is None or parallel.etp is not None:
        return parallel
    return parallel.model_copy(update={"etp": ranks})


def _check(model: TransformerModel, parallel: Parallel, cluster: Cluster) -> None:
    check_devices(parallel, cluster)
    for axis, count, key in (("tp", model.heads, "heads"), ("cp", model.seq, "seq")):
        value = getattr(parallel, axis)
        if count % value:
            raise PlanError(
                f"parallel.{axis}={value} does not divide model.{key}={count}; take "
                f"parallel.{axis}={_divisor(count, value)}."
            )
    _check_context(model, parallel)
    if not model.experts and parallel.etp not in (None, 1):
        raise PlanError(f"parallel.etp={parallel.etp} needs a model with experts; leave it out.")
    if model.experts:
        expert_groups(parallel, cluster)
    if parallel.ep > 1:
        if not model.experts:
            raise PlanError(f"parallel.ep={parallel.ep} needs a model with experts; take parallel.ep=1.")
        if model.experts % parallel.ep:
            raise PlanError(
                f"parallel.ep={parallel.ep} does not divide model.experts={model.experts}; take "
                f"parallel.ep={_divisor(model.experts, parallel.ep)}."
            )


def _check_context(model: TransformerModel, parallel: Parallel) -> None:
    """All-to-all gives every context-parallel rank whole heads."""
    heads = model.heads // parallel.tp
    if parallel.context_exchange == "all-to-all" and heads % parallel.cp:
        raise PlanError(
            f"parallel.context_exchange=all-to-all needs cp={parallel.cp} to divide the heads of a "
            f"tensor-parallel rank, {heads}; take "
            f"parallel.cp={_divisor(heads, parallel.cp)} or parallel.context_exchange=ring."
        )


def _check_chunks(schedule: str, vpp: int) -> None:
    several = schedule in ("interleaved", "breadth-first", "long-link", "greedy")
    chunks = vpp if several else 2 if schedule == "zb-v" else 1
    if vpp != chunks:
        raise PlanError(
            f"training.schedule={schedule} takes parallel.vpp={chunks}, not {vpp}; take "
            f"parallel.vpp={chunks}" + (", or training.schedule=interleaved." if vpp > 1 else ".")
        )


def micro_batches_of(parallel: Parallel, micro_batch: int) -> int:
    """Micro-batches of each pipeline a step."""
    each = parallel.dp * micro_batch
    count, rest = divmod(parallel.global_batch, each)
    if rest or not count:
        fix = max(1, round(count + rest / each)) * each
        raise PlanError(
            f"parallel.global_batch={parallel.global_batch} is not a multiple of dp x micro_batch = "
            f"{parallel.dp} x "
            f"{micro_batch}; take parallel.global_batch={fix}."
        )
    return count


def _check_rounds(job: Job, parallel: Parallel, micro_batch: int) -> None:
    """The interleaved schedule takes micro-batches in rounds of as many as there are stages."""
    count = micro_batches_of(parallel, micro_batch)
    if job.training.schedule == "interleaved" and count % parallel.pp:
        each = parallel.dp * micro_batch * parallel.pp
        fix = max(1, round(parallel.global_batch / each)) * each
        raise PlanError(
            f"The interleaved schedule takes micro-batches in rounds of pp={parallel.pp}, and global_batch="
            f"{parallel.global_batch} makes {count}; take parallel.global_batch={fix}."
        )


@lru_cache(maxsize=4096)
def layers_of(model: TransformerModel, parallel: Parallel) -> tuple[int, ...]:
    """Layers of each virtual stage."""
    stages = parallel.pp * parallel.vpp
    given = parallel.layers_per_stage
    if given is not None:
        if len(given) != stages or sum(given) != model.layers or min(given) < 0:
            raise PlanError(
                f"parallel.layers_per_stage has {len(given)} entries that sum to {sum(given)}; give "
                f"pp x vpp = {stages} "
                f"that sum to model.layers={model.layers}."
            )
        return given
    extra = parallel.embedding_as_layer + parallel.head_as_layer
    each, rest = divmod(model.layers + extra, stages)
    if rest or each < (extra if stages == 1 else 1):
        raise PlanError(
            f"pp x vpp = {parallel.pp} x {parallel.vpp} does not divide model.layers={model.layers}"
            f"{f' + {extra}' if extra else ''}; take "
            f"{_nearest_stages(model.layers, parallel)}, or say how in parallel.layers_per_stage."
        )
    layers = [each] * stages
    layers[0] -= parallel.embedding_as_layer
    layers[-1] -= parallel.head_as_layer
    return tuple(layers)


def _nearest_stages(layers: int, parallel: Parallel) -> str:
    """Settings that divide the layers: other stages for the same chunks, or the embedding and the head
    counted."""
    if (layers + 2) % (parallel.pp * parallel.vpp) == 0 and layers + 2 > parallel.pp * parallel.vpp:
        return "parallel.embedding_as_layer=true parallel.head_as_layer=true"
    plain = " parallel.embedding_as_layer=false parallel.head_as_layer=false"
    counted = plain if parallel.embedding_as_layer or parallel.head_as_layer else ""
    if layers % parallel.vpp:
        return f"parallel.pp={_divisor(layers, parallel.pp)} parallel.vpp=1{counted}"
    return f"parallel.pp={_divisor(layers // parallel.vpp, parallel.pp)}{counted}"


def _divisor(count: int, near: int) -> int:
    """The divisor of `count` nearest to `near`, the smaller of two."""
    divisors = (value for value in range(1, count + 1) if count % value == 0)
    return min(divisors, key=lambda value: (abs(value - near), value))


def _shards(parallel: Parallel, cluster: Cluster, sharding: str) -> tuple[int, int]:
    """The level across whose members whole copies lie, and how many ranks share one copy of the state."""
    replicas = group(parallel, cluster, ("dp", "cp"))
    level = len(cluster.levels) - 1
    if parallel.shard_within is not None:
        names = [entry.name for entry in cluster.levels]
        if parallel.shard_within not in names:
            raise ConfigError(
                f"parallel.shard_within: the cluster has no level '{parallel.shard_within}'; take one of "
                f"{', '.join(names)}."
            )
        level = names.index(parallel.shard_within)
    if sharding == "hybrid":
        return level, max(1, prod(span.ranks for span in replicas[:level]))
    return level, group_size(replicas)
