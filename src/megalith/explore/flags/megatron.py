"""A plan as a shell script that runs Megatron-LM's pretrain_gpt.py under torchrun.

Argument names and their rules are those of Megatron-LM core_v0.19.0 (megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py); all of them exist since core_v0.15. The script trains on
mock data for a few steps, so that a prediction can be checked; data and learning rate are the user's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import groupby

from megalith.cost.memory import traffic_bytes
from megalith.explore.flags.megatron_model import model_flags
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
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.plan import Plan
from megalith.explore.prediction import Prediction

VERSION = "core_v0.19.0"
_PLAIN = ("tp", "cp", "dp", "pp")
_DATA_OUTSIDE = ("tp", "cp", "pp", "dp")

_CONTEXT_EXCHANGES = {"ring": "p2p", "all-gather": "all_gather", "all-to-all": "a2a"}

Flags = list[str]


def megatron_files(job: Job, prediction: Prediction) -> list[TrainerFile]:
    """The script, `megatron.sh`; a micro-batch or recompute that the job leaves open is the predicted one."""
    model, parallel = plan_of(job)
    plan = predicted_plan(job, prediction)
    missing: list[str] = []
    orders = [_PLAIN]
    if model.experts == 0 or parallel.ep == 1:
        # Megatron refuses the other order when experts and attention have unequal data parallelism.
        orders.append(_DATA_OUTSIDE)
    ranks = host_ranks(job, orders)
    note = placement_note(ranks, job)
    if note:
        missing.append(note)
    groups = {
        "MODEL": model_flags(model, plan),
        "PARALLEL": _parallel(job, plan, ranks, missing),
        "TRAINING": _training(job, plan, missing),
        "DATA": _data(model),
    }
    settings = _settings(job, parallel, missing)
    text = _script(job, prediction, groups, settings, ranks, missing)
    return [TrainerFile("megatron.sh", text, tuple(missing))]


def pipeline_layout(layers: Iterable[int], mtp_layers: int = 0) -> str:
    """Uneven stages as --pipeline-model-parallel-layout spells them; `m` is multi-token prediction.

    >>> pipeline_layout([3, 4, 4, 3])
    'Et*3|(t*4|)*2,t*3L'
    """
    *others, last = [f"t*{count}" if count else "" for count in layers]
    last += "m" * mtp_layers
    if not others:
        return f"E{last}L"
    first, *middle = others
    text = f"E{first}|"
    for stage, run in groupby(middle):
        times = len(list(run))
        text += f"({stage}|)*{times}," if times > 1 else f"{stage}|"
    return f"{text}{last}L"


def _parallel(job: Job, plan: Plan, ranks: HostRanks | None, missing: list[str]) -> Flags:
    parallel, model = plan.parallel, plan.transformer
    flags = [
        f"--tensor-model-parallel-size {parallel.tp}",
        f"--pipeline-model-parallel-size {parallel.pp}",
        f"--context-parallel-size {parallel.cp}",
    ]
    if parallel.cp > 1:
        flags.append(f"--cp-comm-type {_CONTEXT_EXCHANGES[parallel.context_exchange]}")
    if model.experts:
        flags += [
            f"--expert-model-parallel-size {parallel.ep}",
            f"--expert-tensor-parallel-size {plan.shape.expert_tp}",
        ]
    if parallel.sequence_parallel and parallel.tp > 1:
        flags.append("--sequence-parallel")
        if plan.tensor_overlap:
            flags.append("--tp-comm-overlap")
    elif model.experts and parallel.tp > 1:
        missing.append("experts with tp above 1 need --sequence-parallel, which this plan turns off.")
    flags += _stages(job, plan, missing)
    if ranks is not None and ranks.order == _DATA_OUTSIDE:
        flags.append("--use-tp-pp-dp-mapping")
    if plan.sharding == "none":
        return flags
    flags.append("--use-distributed-optimizer")
    if plan.sharding in ("zero2", "zero3", "hybrid"):
        held = "optim_grads" if plan.sharding == "zero2" else "optim_grads_params"
        flags += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {held}"]
        flags += ["--ckpt-format fsdp_dtensor"]
    copies = sharded_copies(job)
    if copies > 1:
        flags.append(f"--num-distributed-optimizer-instances {copies}")
    return flags


def _stages(job: Job, plan: Plan, missing: list[str]) -> Flags:
    parallel, layers = plan.parallel, plan.layers_per_stage
    flags: Flags = []
    if parallel.pp == 1:
        return flags
    if parallel.embedding_as_layer or parallel.head_as_layer:
        if parallel.vpp > 1:
            each = max(layers)
            flags.append(f"--num-layers-per-virtual-pipeline-stage {each}")
        if parallel.embedding_as_layer:
            flags.append("--account-for-embedding-in-pipeline-split")
        if parallel.head_as_layer:
            flags.append("--account-for-loss-in-pipeline-split")
    elif len(set(layers)) > 1:
        layout = pipeline_layout(layers, plan.transformer.mtp_layers)
        flags.append(f"--pipeline-model-parallel-layout {shlex.quote(layout)}")
    elif parallel.vpp > 1:
        flags.append(f"--num-layers-per-virtual-pipeline-stage {layers[0]}")
    schedule = plan.schedule
    own = "interleaved" if parallel.vpp > 1 else "1f1b"
    if schedule == "breadth-first" and parallel.vpp > 1:
        flags.append(f"--microbatch-group-size-per-virtual-pipeline-stage {plan.micro_batches}")
        missing.append(
            "schedule breadth-first: forwards run breadth-first, backwards as in interleaved 1F1B."
        )
    elif schedule != own:
        missing.append(
            f"schedule {schedule}: Megatron-LM {VERSION} has 1F1B and interleaved 1F1B only; this runs "
            f"{own}, so expect another step time (torchtitan.toml runs the plan's schedule)."
        )
    return flags


def _training(job: Job, plan: Plan, missing: list[str]) -> Flags:
    training, parallel = job.training, plan.parallel
    flags = [
        f"--micro-batch-size {plan.shape.micro_batch}",
        f"--global-batch-size {parallel.global_batch}",
        f"--attention-backend {'flash' if plan.shape.flash else 'unfused'}",
    ]
    flags += {
        "bf16": ["--bf16"],
        "fp16": ["--fp16"],
        "fp8": ["--bf16", "--fp8-format hybrid"],
        "fp32": [],
    }.get(training.precision, ["--bf16"])
    if training.precision not in ("bf16", "fp16", "fp8", "fp32"):
        missing.append(f"precision {training.precision}: this runs bf16.")
    flags += {
        "none": [],
        "selective": ["--recompute-granularity selective", "--recompute-modules core_attn"],
        "full": [
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        ],
    }.get(plan.recompute, [])
    if plan.recompute not in ("none", "selective", "full"):
        missing.append(f"recompute {plan.recompute}: this recomputes nothing.")
    if parallel.dp * parallel.cp > 1:
        if plan.overlap:
            flags.append("--overlap-grad-reduce")
            if plan.sharding != "none":
                flags.append("--overlap-param-gather")
            # Megatron counts elements.
            flags.append(
                f"--ddp-bucket-size {max(1, training.bucket_bytes // traffic_bytes(training.precision))}"
            )
        if training.precision in ("bf16", "fp8"):
            flags += [
                "# As predicted; without it gradients travel in FP32, twice the bytes.",
                "--grad-reduce-in-bf16",
            ]
    if training.compression not in ("none", "bf16"):
        missing.append(f"compression={training.compression}: Megatron-LM sends gradients uncompressed.")
    if training.local_steps > 1:
        missing.append(
            f"local_steps={training.local_steps}: Megatron-LM exchanges gradients every step (no DiLoCo)."
        )
    return flags


def _data(model: TransformerModel) -> Flags:
    return [
        "--mock-data",
        "--tokenizer-type NullTokenizer",
        f"--vocab-size {model.vocab}",
        "--train-iters 20",
        "--lr 1e-4",
        "--eval-iters 0",
        "--log-interval 1",
        "--log-throughput",
    ]


def _settings(job: Job, parallel: Parallel, missing: list[str]) -> dict[str, str]:
    settings = network_settings(job, missing)
    if parallel.sharding not in ("zero2", "zero3", "hybrid") and (parallel.tp > 1 or parallel.cp > 1):
        # Megatron asserts it before Blackwell; its FSDP asserts the opposite.
        settings["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return settings


def _script(
    job: Job,
    prediction: Prediction,
    groups: dict[str, Flags],
    settings: dict[str, str],
    ranks: HostRanks | None,
    missing: list[str],
) -> str:
    hosts, processes = host_count(job)
    lines = ["#!/usr/bin/env bash"]
    lines += [f"# {line}" for line in headline(job, prediction, f"Megatron-LM {VERSION}")]
    lines += [f"# Not expressed: {sentence}" for sentence in missing]
    lines += [
        "#",
        "# Run this on every host, in a checkout of Megatron-LM, with MASTER_ADDR and HOST set. HOST is the",
        "# host's number counted through the cluster from the inside out: all hosts of the first",
        f"# {job.cluster.levels[:2][-1].name}, then those of the second, and so on.",
        "set -euo pipefail",
    ]
    lines += [f"export {name}={value}" for name, value in settings.items()]
    rank = '"$HOST"' if ranks is None or ranks.as_counted else '"$((' + ranks.shell("HOST") + '))"'
    if rank != '"$HOST"':
        lines += ["# Hosts are renumbered so that the axes lie where the plan has them."]
    lines += [
        ': "${HOST:?set HOST to the number of this host}"',
        f"RANK_OF_HOST={rank}",
        "LAUNCH=(",
        f"  --nnodes {hosts}",
        f"  --nproc-per-node {processes}",
        '  --node-rank "$RANK_OF_HOST"',
        '  --master-addr "${MASTER_ADDR:?set MASTER_ADDR to the host of rank 0}"',
        '  --master-port "${MASTER_PORT:-29500}"',
        ")",
    ]
    for name, flags in groups.items():
        if name == "DATA":
            lines.append("# Twenty steps on mock data; replace these to train.")
        lines += [f"{name}=(", *(f"  {flag}" for flag in flags), ")"]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in groups)
    lines.append(f'torchrun "${{LAUNCH[@]}}" "${{MEGATRON:-pretrain_gpt.py}}" {arrays} "$@"')
    return "\n".join(lines) + "\n"
