"""The costs of a recommendation model's step, as Neo runs it: sharded tables, replicated MLPs.

Lookups and updates take memory bandwidth, pooled vectors cross in an all-to-all each way, MLP gradients in an
all-reduce. With `training.overlap` the next batch's ids are exchanged under the top MLP, pooled vectors under
the bottom MLP and gradients under the backward pass. Tables beyond the fastest memory lie in the next tier
behind a cache; skew decides how much of the traffic reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from megalith.core.errors import PlanError
from megalith.core.units import format_bytes
from megalith.cost.calibration import Calibration, calibration
from megalith.cost.collectives import (
    Fabric,
    Group,
    all_to_all_seconds,
    collective_seconds,
    egress_bytes,
    group_size,
)
from megalith.cost.embedding import CACHE_SHARE, SKEW, lookup_bytes, state_bytes, tier_seconds, update_bytes
from megalith.cost.operators import BYTES_PER_ELEMENT, MLP_PEAK_SHARE, gemm_seconds, peak_flops
from megalith.explore.job import DlrmModel
from megalith.explore.pipeline.costs import Collective, StepCosts
from megalith.hardware.cluster import Cluster


@dataclass(frozen=True, slots=True)
class DlrmPlan:
    """A recommendation job with every setting decided; `explore.dlrm` makes it."""

    model: DlrmModel
    cluster: Cluster
    fabric: Fabric
    replicas: Group
    """All devices: each holds the MLPs, a part of the tables and a part of the batch."""
    devices: int
    batch: int
    """Samples of each device."""
    precision: str
    overlap: bool

    @property
    def constants(self) -> Calibration:
        """Fitted constants of the cost model for the plan's device."""
        return calibration(self.cluster.device)

    @property
    def pooled_bytes(self) -> float:
        """Pooled vectors of a device's samples, in half precision."""
        return 2.0 * self.batch * self.model.tables * self.model.dim


@dataclass(frozen=True, slots=True)
class DlrmMemory:
    """What lies in the fastest memory of a device."""

    cached: float
    """Share of the accesses to tables that it serves."""
    by_use: dict[str, float]
    """Bytes of weights, gradients, optimizer, activations and margin."""


@dataclass(frozen=True, slots=True)
class DlrmSeconds:
    """One step of a device by operation, each as long as it takes by itself."""

    lookup: float
    update: float
    bottom: float
    """Forward of the bottom MLP."""
    top: float
    """Forward of cross layers and the top MLP."""
    output_dist: float
    """All-to-all of pooled vectors, one way."""
    input_dist: float
    """All-to-all of ids."""
    all_reduce: float
    """Gradients of the MLPs."""
    overlap: bool

    @property
    def hidden_forward(self) -> float:
        """Of the forward output distribution, what runs under the bottom MLP."""
        return min(self.output_dist, self.bottom) if self.overlap else 0.0

    @property
    def hidden_backward(self) -> float:
        """Of the backward output distribution, what runs under the bottom MLP's backward."""
        return min(self.output_dist, 2 * self.bottom) if self.overlap else 0.0

    @property
    def hidden_ids(self) -> float:
        """Of the input distribution, what runs under the top MLP of the batch before."""
        return min(self.input_dist, self.top) if self.overlap else 0.0

    @property
    def exposed_all_to_all(self) -> float:
        """Seconds that the device waits for ids and pooled vectors."""
        output = 2 * self.output_dist - self.hidden_forward - self.hidden_backward
        return output + self.input_dist - self.hidden_ids


def dlrm_seconds(plan: DlrmPlan, cached: float) -> DlrmSeconds:
    """Seconds of a step's operations; `cached` is the share of accesses that the fastest memory serves."""
    model, device, constants, batch = plan.model, plan.cluster.device, plan.constants, plan.batch
    element = BYTES_PER_ELEMENT[model.table_dtype]
    # How often ids repeat within a batch is not known here, so each counts as a row of its own.
    vectors = float(batch * model.tables)
    accesses = (vectors * model.pooling, vectors * model.pooling, vectors, model.dim, int(element))
    state = float(state_bytes("rowwise_adagrad", model.dim))
    bottom, top = _mlp_seconds(plan)
    return DlrmSeconds(
        lookup=float(tier_seconds(device, constants, lookup_bytes(constants, *accesses), cached)),
        update=float(tier_seconds(device, constants, update_bytes(constants, *accesses, state), cached)),
        bottom=bottom,
        top=top,
        output_dist=all_to_all_seconds(plan.fabric, plan.replicas, plan.pooled_bytes),
        input_dist=all_to_all_seconds(plan.fabric, plan.replicas, 8.0 * batch * model.tables * model.pooling),
        all_reduce=collective_seconds(plan.fabric, "all_reduce", plan.replicas, 4.0 * _mlp_parameters(model)),
        overlap=plan.overlap,
    )


def dlrm_step_costs(plan: DlrmPlan, seconds: DlrmSeconds) -> StepCosts:
    """The step as a pipeline of one stage, for the simulation."""
    forward = (
        seconds.lookup
        + seconds.bottom
        + seconds.top
        + seconds.output_dist
        - seconds.hidden_forward
        + seconds.input_dist
        - seconds.hidden_ids
    )
    backward = (
        2 * (seconds.bottom + seconds.top) + seconds.output_dist - seconds.hidden_backward + seconds.update
    )
    reduction = Collective("replicas", seconds.all_reduce, buckets=8 if plan.overlap else 1)
    return StepCosts(
        forward=(forward,),
        backward_input=(backward,),
        backward_weight=(0.0,),
        gradient={(0, 0): reduction} if seconds.all_reduce else {},
        optimizer_seconds=(plan.constants.step_seconds / 10,),
        overlap=plan.overlap,
    )


def dlrm_memory(plan: DlrmPlan) -> DlrmMemory:
    """The tables' place in a device's memory tiers; PlanError if they or the batch do not fit."""
    model, device, devices, batch = plan.model, plan.cluster.device, plan.devices, plan.batch
    tables = table_bytes(model) / devices
    dense = 16.0 * _layer_parameters(model)
    widths = sum(model.bottom) + sum(_crosses(model)) + sum(model.top)
    activations = 4.0 * batch * (2 * model.tables * model.dim + widths)
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
    by_use = {
        "weights": min(tables, room),
        "gradients": dense / 4,
        "optimizer": dense * 3 / 4,
        "activations": activations,
        "margin": 0.0,
    }
    return DlrmMemory(1.0 if kept == 1.0 else kept**SKEW, by_use)


def dlrm_level_bytes(plan: DlrmPlan) -> dict[str, float]:
    """Bytes a step that leave the busiest member of each level, by level name."""
    gradients = 4.0 * _mlp_parameters(plan.model)
    return {
        level.name: egress_bytes("all_reduce", plan.replicas, index, gradients)
        + _all_to_all_egress(plan.replicas, index, 2 * plan.pooled_bytes)
        for index, level in enumerate(plan.cluster.levels)
        if index < len(plan.replicas)
    }


def dlrm_flops(model: DlrmModel) -> float:
    """Forward FLOPs of one sample."""
    return model.mflops_per_sample * 1e6 if model.mflops_per_sample else 2 * _layer_parameters(model)


def table_bytes(model: DlrmModel) -> float:
    """All tables with row-wise AdaGrad's one scalar per row."""
    return model.tables * model.rows * (model.dim * BYTES_PER_ELEMENT[model.table_dtype] + 4)


def _mlp_seconds(plan: DlrmPlan) -> tuple[float, float]:
    """Forward seconds of the bottom and the top MLP."""
    device, constants, model = plan.cluster.device, plan.constants, plan.model
    bottom, top = (_forward_seconds(plan, widths) for widths in _widths(model))
    if model.mflops_per_sample is None:
        return bottom, top
    # Only the total is known: keep the proportion of the two.
    reach = peak_flops(device, plan.precision) * constants.gemm_fraction * MLP_PEAK_SHARE
    total = max(plan.batch * model.mflops_per_sample * 1e6 / reach, 0.0)
    share = bottom / sum((bottom, top))
    return total * share, total * (1 - share)


def _forward_seconds(plan: DlrmPlan, widths: list[int]) -> float:
    return sum(
        gemm_seconds(plan.cluster.device, plan.constants, plan.precision, plan.batch, out, width)
        for width, out in pairwise(widths)
    )


def _mlp_parameters(model: DlrmModel) -> float:
    """Parameters of the MLPs, counted from FLOPs where only those are known."""
    return _layer_parameters(model) if model.mflops_per_sample is None else model.mflops_per_sample * 1e6 / 2


def _layer_parameters(model: DlrmModel) -> float:
    """Parameters of the MLP layers that the job describes."""
    return float(sum(width * out for widths in _widths(model) for width, out in pairwise(widths)))


def _widths(model: DlrmModel) -> tuple[list[int], list[int]]:
    """Layer widths of the bottom and the top MLP, from input to output; crosses come before the top's."""
    bottom = [max(1, model.dense), *model.bottom, model.dim]
    features = model.tables + 1
    joined = model.dim + min(features * (features - 1) // 2, 4096)
    if model.num_crosses:
        joined = features * model.dim
    return bottom, [joined, *_crosses(model), *model.top, 1]


def _crosses(model: DlrmModel) -> list[int]:
    """Widths of the matrix products in the cross layers, one after the other."""
    width = (model.tables + 1) * model.dim
    rank = width if model.cross_rank is None else model.cross_rank
    return ([rank, width] if rank < width else [width]) * model.num_crosses


def _all_to_all_egress(ranks: Group, level: int, sent: float) -> float:
    """All-to-all bytes that leave a member of the level."""
    size, inside = group_size(ranks), prod(span.ranks for span in ranks[:level])
    return ranks[level].sharing * inside * sent * (size - inside) / size if size > 1 else 0.0
