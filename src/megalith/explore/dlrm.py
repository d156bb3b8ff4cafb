"""The step of a recommendation model on many devices, as Neo runs it: tables cut over all devices, MLPs
copied.

Lookups and updates take memory bandwidth, pooled vectors cross in an all-to-all each way, MLP gradients in an
all-reduce. With `training.overlap` the next batch's indices travel under the top MLP, pooled vectors under
the bottom MLP and gradients under the backward pass. Tables beyond the fastest memory lie in the next tier
behind a cache; skew decides how much of the traffic reaches it.
"""

from __future__ import annotations

from itertools import pairwise

from megalith.core.errors import PlanError
from megalith.core.units import format_bytes
from megalith.cost.calibration import Calibration, calibration
from megalith.cost.collectives import Fabric, all_to_all_seconds, collective_seconds, egress_bytes
from megalith.cost.embedding import CACHE_SHARE, SKEW, lookup_bytes, state_bytes, tier_seconds, update_bytes
from megalith.cost.operators import BYTES_PER_ELEMENT, gemm_seconds, peak_flops
from megalith.explore.job import DlrmModel, Job, Parallel
from megalith.explore.load import resolve_cluster
from megalith.explore.pipeline.costs import Collective, StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.placement import check_devices, group
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Device

PEAK_SHARE = 0.5
"""Share of the reachable FLOP/s of MLPs whose layers are not given, of the widths such models have."""


def predict_dlrm(job: Job, *, record: bool = False) -> Prediction:
    """One training step: forward, backward, updates."""
    model = job.model
    assert isinstance(model, DlrmModel)
    cluster = resolve_cluster(job.cluster, job.hardware)
    device, constants = cluster.device, calibration(cluster.device)
    parallel = _parallel(job, cluster.devices)
    check_devices(parallel, cluster)
    devices = parallel.dp
    if parallel.global_batch % devices:
        raise PlanError(
            f"global_batch={parallel.global_batch} is not a multiple of dp={devices}; take "
            f"global_batch={max(1, round(parallel.global_batch / devices)) * devices}."
        )
    batch = parallel.global_batch // devices
    fabric = Fabric(cluster, job.network.routing, job.network.multipath, job.network.collectives)
    everyone = group(parallel, cluster, ("dp",))
    element = BYTES_PER_ELEMENT[model.table_dtype]
    cached, memory = _memory(model, device, devices, batch)
    precision = "tf32" if job.training.precision == "fp32" else job.training.precision

    # How often ids repeat within a batch is not known here, so each counts as a row of its own.
    vectors = float(batch * model.tables)
    traffic = (vectors * model.pooling, vectors * model.pooling, vectors, model.dim, int(element))
    lookup = float(tier_seconds(device, constants, lookup_bytes(constants, *traffic), cached))
    state = float(state_bytes("rowwise_adagrad", model.dim))
    update = float(tier_seconds(device, constants, update_bytes(constants, *traffic, state), cached))
    pooled = 2.0 * batch * model.tables * model.dim
    exchange = all_to_all_seconds(fabric, everyone, pooled)
    indices = all_to_all_seconds(fabric, everyone, 8.0 * batch * model.tables * model.pooling)
    bottom, top, dense_parameters = _mlp(model, device, constants, precision, batch)
    reduce = collective_seconds(fabric, "all_reduce", everyone, 4.0 * dense_parameters)
    overlap = job.training.overlap
    if overlap:
        hidden_forward = min(exchange, bottom)
        hidden_backward = min(exchange, 2 * bottom)
        hidden_indices = min(indices, top)
    else:
        hidden_forward = hidden_backward = hidden_indices = 0.0
    forward = lookup + bottom + top + exchange - hidden_forward + indices - hidden_indices
    backward = 2 * (bottom + top) + exchange - hidden_backward + update
    costs = StepCosts(
        forward=(forward,),
        backward_input=(backward,),
        backward_weight=(0.0,),
        gradient={(0, 0): Collective("replicas", reduce, buckets=8 if overlap else 1)} if reduce else {},
        optimizer_seconds=(constants.step_seconds / 10,),
        overlap=overlap,
    )
    timeline = simulate(build_schedule("1f1b", 1, 1), costs, record=record)
    seconds = timeline.step_seconds
    exchanged = 2 * exchange - hidden_forward - hidden_backward + indices - hidden_indices
    flops = 3 * _flops(model) * parallel.global_batch
    levels = {
        level.name: egress_bytes("all_reduce", everyone, index, 4.0 * dense_parameters)
        + _leaving(everyone, index, 2 * pooled)
        for index, level in enumerate(cluster.levels)
        if index < len(everyone)
    }
    exposed = timeline.exposed_seconds
    breakdown = {
        "compute": 3 * (bottom + top),
        "embedding": lookup + update,
        "all_to_all": exchanged,
        "data_parallel": exposed["gradient"][0] + exposed["parameters"][0],
        "pipeline_bubble": exposed["bubble"][0],
        "optimizer": exposed["optimizer"][0],
    }
    outermost = max((index for index, span in enumerate(everyone) if span.ranks > 1), default=0)
    link = f"link:{cluster.levels[outermost].name}"
    shares = {
        "compute": breakdown["compute"],
        "memory-bandwidth": breakdown["embedding"],
        link: exchanged + breakdown["data_parallel"],
    }
    achieved = flops / seconds / devices
    return Prediction(
        step_seconds=seconds,
        model_tflops_per_gpu=achieved / 1e12,
        hardware_tflops_per_gpu=achieved / 1e12,
        mfu=achieved / peak_flops(device, precision),
        memory_bytes_per_device=sum(memory.values()),
        fits=True,
        breakdown=breakdown,
        memory=memory,
        level_bytes=levels,
        bound_by=max(shares, key=lambda name: shares[name]),
        micro_batch=batch,
        recompute="none",
        uncertainty=0.3,
        timeline=timeline if record else None,
    )


def table_bytes(model: DlrmModel) -> float:
    """All tables with row-wise AdaGrad's one scalar per row."""
    return model.tables * model.rows * (model.dim * BYTES_PER_ELEMENT[model.table_dtype] + 4)


def _parallel(job: Job, devices: int) -> Parallel:
    if job.parallel is not None:
        return job.parallel
    if job.global_batch is None:
        raise PlanError("job: global_batch is missing; add it, such as global_batch: 65536.")
    return Parallel(dp=devices, global_batch=job.global_batch)


def _memory(model: DlrmModel, device: Device, devices: int, batch: int) -> tuple[float, dict[str, float]]:
    """Share of accesses that the fastest memory serves, and bytes there by use."""
    tables = table_bytes(model) / devices
    dense = 16.0 * _dense_parameters(model)
    activations = 4.0 * batch * (2 * model.tables * model.dim + sum(model.bottom) + sum(model.top))
    room = device.bytes * CACHE_SHARE - dense - activations
    if room <= 0:
        raise PlanError(
            f"A batch of {batch} samples a device needs {format_bytes(dense + activations)} and "
            f"{device.name} has {format_bytes(device.bytes)}; take a smaller global_batch or more devices."
        )
    everything = room + sum(tier.bytes for tier in device.memory[1:])
    if tables > everything:
        needed = -(-int(table_bytes(model)) // int(everything))
        raise PlanError(
            f"The tables need {format_bytes(table_bytes(model))} and {devices} devices with all their "
            f"tiers hold {format_bytes(devices * everything)}; take parallel.dp={needed}."
        )
    kept = min(1.0, room / tables)
    share = 1.0 if kept == 1.0 else kept**SKEW
    return share, {
        "weights": min(tables, room),
        "gradients": dense / 4,
        "optimizer": dense * 3 / 4,
        "activations": activations,
        "margin": 0.0,
    }


def _widths(model: DlrmModel) -> tuple[list[int], list[int]]:
    bottom = [max(1, model.dense), *model.bottom, model.dim]
    features = model.tables + 1
    top = [model.dim + min(features * (features - 1) // 2, 4096), *model.top, 1]
    return bottom, top


def _dense_parameters(model: DlrmModel) -> float:
    return float(sum(one * other for widths in _widths(model) for one, other in pairwise(widths)))


def _flops(model: DlrmModel) -> float:
    """Forward FLOPs of one sample."""
    return model.mflops_per_sample * 1e6 if model.mflops_per_sample else 2 * _dense_parameters(model)


def _mlp(
    model: DlrmModel, device: Device, constants: Calibration, precision: str, batch: int
) -> tuple[float, float, float]:
    """Forward seconds of the bottom and the top MLP, and their parameters."""
    bottom, top = _widths(model)
    seconds = [
        sum(gemm_seconds(device, constants, precision, batch, out, width) for width, out in pairwise(widths))
        for widths in (bottom, top)
    ]
    parameters = _dense_parameters(model)
    if model.mflops_per_sample is None:
        return seconds[0], seconds[1], parameters
    # Only the total is known: keep the proportion of the two, and count parameters from FLOPs.
    reach = peak_flops(device, precision) * constants.gemm_fraction * PEAK_SHARE
    total = max(batch * model.mflops_per_sample * 1e6 / reach, 0.0)
    share = seconds[0] / sum(seconds)
    return total * share, total * (1 - share), model.mflops_per_sample * 1e6 / 2


def _leaving(everyone: tuple[object, ...], level: int, sent: float) -> float:
    """All-to-all bytes that leave a member of the level."""
    from megalith.cost.collectives import LevelSpan, group_size

    spans = tuple(span for span in everyone if isinstance(span, LevelSpan))
    ranks, inside = group_size(spans), 1
    for span in spans[:level]:
        inside *= span.ranks
    return spans[level].sharing * inside * sent * (ranks - inside) / ranks if ranks > 1 else 0.0
