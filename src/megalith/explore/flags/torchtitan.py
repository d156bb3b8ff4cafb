"""A plan as a torchtitan configuration.

Keys are those of torchtitan v0.2.2 (torchtitan/config/job_config.py), the last release that reads TOML; its
schedules are those of torch.distributed.pipelining. A schedule that has no name there is written out as a
CSV of actions, which torchtitan runs as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from megalith.explore.cost.step import scheduled_cost
from megalith.explore.flags.plan_notes import (
    headline,
    host_count,
    network_settings,
    placement_note,
    plan_of,
    predicted_plan,
    sharded_copies,
)
from megalith.explore.flags.ranks import HostRanks, TrainerFile, host_ranks
from megalith.explore.flags.torchtitan_flavors import flavor_of
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.plan import Plan, layers_of, make_plan
from megalith.explore.prediction import Prediction

VERSION = "v0.2.2"
SCHEDULE_FILE = "schedule.csv"
_ORDER = ("tp", "cp", "dp", "pp")
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}
_ACTIONS = {"F": "F", "BW": "B", "B": "I", "W": "W"}

Table = dict[str, Any]


def torchtitan_files(job: Job, prediction: Prediction) -> list[TrainerFile]:
    """`torchtitan.toml`, and `schedule.csv` where the schedule must be written out."""
    model, parallel = plan_of(job)
    plan = predicted_plan(job, prediction)
    missing: list[str] = []
    ranks = host_ranks(job, [_ORDER])
    note = placement_note(ranks, job)
    if note:
        missing.append(note)
    name, flavor = flavor_of(model, missing)
    tables: dict[str, Table] = {
        "job": {"description": job.name or model.name or "a plan of Megalith"},
        "model": {"name": name, "flavor": flavor},
        "training": _training(job, model, parallel, prediction, missing),
        "parallelism": _parallelism(job, plan, missing),
        "activation_checkpoint": _checkpoint(job, prediction, missing),
        "compile": {"enable": True, "components": ["loss"] if model.experts else ["model", "loss"]},
    }
    if job.training.precision == "fp8":
        tables["model"]["converters"] = ["quantize.linear.float8"]
        tables["quantize.linear.float8"] = {"filter_fqns": ["output", "router.gate"]}
        if model.experts:
            tables["model"]["converters"].append("quantize.grouped_mm.float8")
            tables["quantize.grouped_mm.float8"] = {"fqns": ["experts"]}
    written = _schedule(job, parallel, prediction, tables["parallelism"], missing)
    settings = network_settings(job, missing)
    text = _toml(_comments(job, prediction, ranks, settings, missing), tables)
    return [TrainerFile("torchtitan.toml", text, tuple(missing)), *written]


def schedule_csv(schedule: Schedule) -> str:
    """The order of actions as torch.distributed.pipelining reads it: a line a rank, 3F0 for the forward
    of micro-batch 0 on stage 3, I and W for the two halves of a backward, B for both."""
    stages = schedule.chunk_stages
    lines = [
        ",".join(f"{stages[device][op.chunk]}{_ACTIONS[op.kind]}{op.micro_batch}" for op in order)
        for device, order in enumerate(schedule.order)
    ]
    return "\n".join(lines) + "\n"


def _training(
    job: Job, model: TransformerModel, parallel: Parallel, prediction: Prediction, missing: list[str]
) -> Table:
    micro_batch = parallel.micro_batch or prediction.micro_batch
    # A pipeline takes all micro-batches of a step at once; without one they are accumulated one by one.
    local = parallel.global_batch // parallel.dp if parallel.pp > 1 else micro_batch
    training = job.training
    if training.precision == "fp16":
        missing.append("precision fp16: torchtitan trains in bfloat16 or float32; this runs bfloat16.")
    elif training.precision not in ("bf16", "fp8", "fp32"):
        missing.append(f"precision {training.precision}: this runs bfloat16.")
    if training.precision != "fp32" and parallel.dp * parallel.cp > 1:
        missing.append(
            "gradients travel in float32 in torchtitan: expect more traffic than predicted "
            f"(compression={training.compression})."
        )
    if training.local_steps > 1:
        missing.append(
            f"local_steps={training.local_steps}: torchtitan has DiLoCo only through torchft "
            '([fault_tolerance], semi_sync_method = "diloco"), one replica group for each site.'
        )
    if not training.overlap:
        missing.append("overlap=false: FSDP always overlaps its traffic with compute.")
    return {
        "local_batch_size": local,
        "global_batch_size": parallel.global_batch,
        "seq_len": model.seq,
        "steps": 20,
        "dataset": "c4_test",
        "mixed_precision_param": "float32" if training.precision == "fp32" else "bfloat16",
    }


def _parallelism(job: Job, plan: Plan, missing: list[str]) -> Table:
    model, parallel = plan.transformer, plan.parallel
    copies = sharded_copies(job)
    others = parallel.tp * parallel.cp * parallel.pp > 1
    sharding = parallel.sharding
    if sharding == "none" and parallel.dp > 1 and not others:
        replicate, shard, reshard = parallel.dp, 1, "default"
    else:
        replicate, shard = copies, parallel.dp // copies
        reshard = "always" if sharding in ("zero3", "hybrid") else "never"
        if sharding in ("none", "zero1") and parallel.dp > 1:
            missing.append(
                f"sharding {sharding}: beside other axes torchtitan has FSDP only; this gathers parameters "
                "once a step and keeps gradients sharded (as zero2)."
            )
    table: Table = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": parallel.tp,
        "context_parallel_degree": parallel.cp,
        "pipeline_parallel_degree": parallel.pp,
    }
    if parallel.tp > 1 and not parallel.sequence_parallel:
        missing.append("sequence_parallel=false: torchtitan's tensor parallelism always splits the sequence.")
    if parallel.tp > 1:
        table["enable_async_tensor_parallel"] = plan.tensor_overlap
    if parallel.cp > 1:
        table["context_parallel_rotate_method"] = (
            "allgather" if parallel.context_exchange == "all-gather" else "alltoall"
        )
        if parallel.context_exchange == "all-to-all":
            missing.append(
                "context_exchange=all-to-all: torchtitan passes keys round a ring or gathers them."
            )
    if model.experts:
        cut = plan.shape.expert_tp
        table["expert_parallel_degree"] = parallel.ep
        table["expert_tensor_parallel_degree"] = cut if parallel.ep > 1 else 1
        if cut not in (1, parallel.tp):
            missing.append(f"etp={cut}: torchtitan cuts experts as it cuts the rest, or not at all.")
        if plan.fabric.algorithm != "flat" and parallel.ep > 1:
            missing.append(
                "tokens reach experts by a plain all-to-all: across nodes expect more traffic than predicted "
                "(network.collectives=flat predicts it)."
            )
    if model.mtp_layers:
        missing.append(f"mtp_layers={model.mtp_layers}: torchtitan has no multi-token prediction.")
    return table


def _schedule(
    job: Job, parallel: Parallel, prediction: Prediction, table: Table, missing: list[str]
) -> list[TrainerFile]:
    if parallel.pp == 1:
        return []
    model, _ = plan_of(job)
    micro_batch = parallel.micro_batch or prediction.micro_batch
    table["pipeline_parallel_microbatch_size"] = micro_batch
    table["module_fqns_per_model_part"] = _modules(layers_of(model, parallel))
    training = job.training
    name = _SCHEDULES.get(training.schedule)
    if training.schedule == "dualpipe":
        # torchtitan cannot recompute while it overlaps a forward with a backward.
        recompute = training.recompute or prediction.recompute
        table["pipeline_parallel_expert_parallel_overlap"] = recompute == "none"
        missing.append("schedule dualpipe: torchtitan has DualPipeV, which folds it and holds weights once.")
    if name is not None:
        table["pipeline_parallel_schedule"] = name
        return []
    table["pipeline_parallel_schedule"] = "PipelineScheduleMulti"
    table["pipeline_parallel_schedule_csv"] = SCHEDULE_FILE
    # The very order that was simulated: some depend on the costs of links.
    schedule, _ = scheduled_cost(make_plan(job, micro_batch, training.recompute or prediction.recompute))
    return [TrainerFile(SCHEDULE_FILE, schedule_csv(schedule))]


def _modules(layers: tuple[int, ...]) -> list[list[str]]:
    parts, begin = [], 0
    for count in layers:
        parts.append([f"layers.{layer}" for layer in range(begin, begin + count)])
        begin += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _checkpoint(job: Job, prediction: Prediction, missing: list[str]) -> Table:
    mode = job.training.recompute or prediction.recompute
    if mode == "selective":
        missing.append(
            "recompute selective means attention alone; torchtitan's `op` keeps products and attention and "
            "recomputes the rest."
        )
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": mode}


def _comments(
    job: Job, prediction: Prediction, ranks: HostRanks | None, settings: Mapping[str, str], missing: list[str]
) -> list[str]:
    hosts, processes = host_count(job)
    lines = headline(job, prediction, f"torchtitan {VERSION}")
    lines += [f"Not expressed: {sentence}" for sentence in missing]
    rank = "$HOST" if ranks is None or ranks.as_counted else f"$(({ranks.shell('HOST')}))"
    prefix = "".join(f"{name}={value} " for name, value in settings.items())
    lines += [
        "",
        "On every host, in this folder and with torchtitan installed; HOST is the number of the host,",
        "counted through the cluster from the inside out:",
        f"{prefix}torchrun --nnodes {hosts} --nproc-per-node {processes} --node-rank {rank} "
        "--master-addr $MASTER_ADDR --master-port 29500 -m torchtitan.train "
        "--job.config_file torchtitan.toml",
    ]
    return lines


def _toml(comments: list[str], tables: Mapping[str, Table]) -> str:
    lines = [f"# {line}".rstrip() for line in comments]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """What TOML and JSON write alike: numbers, booleans, strings, and lists of them."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
    return json.dumps(value)
