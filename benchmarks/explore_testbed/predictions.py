"""What the Explorer says of a setting, from figures measured in isolation and from nothing else.

In: seconds of one layer and of the model's ends on one rank, latency and bandwidth of the links. Out: the
costs of a step, by megalith.cost for collectives, run through megalith.explore's schedules and simulator.
No measured step enters, and there is no constant to fit.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from gloo_ring import gloo_all_reduce_seconds
from settings import FLOAT_BYTES, SHAPE, Setting, parameters_of, part_of

from megalith.cost.collectives import Fabric, Group, LevelSpan, collective_seconds
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.hardware.catalog import ClusterSpec, LevelSpec, catalog
from megalith.hardware.cluster import Cluster, Link

PARTS: dict[str, dict[str, Any]] = {
    "layer": {"layers": 1},
    "embedding": {"layers": 0, "embedding": True},
    "head": {"layers": 0, "head": True},
}
"""What is measured in isolation; every chunk is a sum of these."""
DEVICE = "cpu-testbed"
_NOTHING_BYTES = 1e-9
Parts = dict[str, dict[str, float]]
"""Part -> operation -> seconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What calibration found: parts by rank, and links."""

    seconds: tuple[Parts, ...]
    inside: Link
    across: Link

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return {"seconds": list(self.seconds), "inside": asdict(self.inside), "across": asdict(self.across)}


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the Explorer predicts of one setting."""

    step_seconds: float
    compute_seconds: float
    """Of the busiest rank."""


def schedule_of(setting: Setting) -> Schedule:
    """The pipeline schedule of a setting."""
    return build_schedule(
        setting.schedule,
        setting.pp,
        setting.micro_batches,
        chunks=setting.chunks,
        extra_in_flight=setting.extra_in_flight,
    )


def predict_step(setting: Setting, measured: Measured) -> Predicted:
    """Simulates the step from what was measured."""
    timeline = simulate(schedule_of(setting), step_costs(setting, measured))
    # Ranks start together and the measured step ends with the last of them.
    return Predicted(timeline.makespan_seconds, max(timeline.compute_seconds))


def step_costs(setting: Setting, measured: Measured) -> StepCosts:
    """The costs that the simulation takes, from measured parts and links."""
    schedule = schedule_of(setting)
    stages = [chunk_seconds(setting, measured, stage) for stage in range(schedule.stages)]
    # Where both gradients are computed at once, that is what was measured: W is what is left beside B.
    split = needs_split(schedule)
    return StepCosts(
        forward=tuple(stage["split F" if split else "F"] for stage in stages),
        backward_input=tuple(stage["B"] if split else stage["BW"] - stage["W"] for stage in stages),
        backward_weight=tuple(stage["W"] for stage in stages),
        forward_transfers=_transfers(setting, measured, schedule, forward=True),
        backward_transfers=_transfers(setting, measured, schedule, forward=False),
        gradient=_gradient(setting, measured, schedule) if setting.dp > 1 else {},
        optimizer_seconds=tuple(
            sum(stages[stage]["update"] for stage in mine) for mine in schedule.chunk_stages
        ),
        overlap=setting.overlap,
    )


def needs_split(schedule: Schedule) -> bool:
    """Whether the schedule computes B and W apart."""
    return any(op.kind in ("B", "W") for op in schedule.order[0])


def chunk_seconds(setting: Setting, measured: Measured, stage: int) -> dict[str, float]:
    """Seconds of each operation of a virtual stage: its layers and, at the ends, embedding and head."""
    stages = setting.pp * setting.chunks
    part = part_of(stage, stages)
    device = schedule_of(setting).placement[stage]
    parts = measured.seconds[setting.rank_of(device, 0)]
    return {
        kind: part["layers"] * parts["layer"][kind]
        + part["embedding"] * parts["embedding"][kind]
        + part["head"] * parts["head"][kind]
        for kind in ("F", "BW", "split F", "B", "W", "update")
    }


def gradient_bytes(setting: Setting, stage: int) -> int:
    """Bytes of the gradients of a virtual stage."""
    return parameters_of(part_of(stage, setting.pp * setting.chunks)) * FLOAT_BYTES


def _transfers(
    setting: Setting, measured: Measured, schedule: Schedule, *, forward: bool
) -> tuple[Transfer | None, ...]:
    activation = SHAPE["micro_batch"] * SHAPE["seq"] * SHAPE["hidden"] * FLOAT_BYTES
    transfers: list[Transfer | None] = []
    for boundary in range(schedule.stages - 1):
        source, target = schedule.placement[boundary], schedule.placement[boundary + 1]
        if source == target:
            transfers.append(None)
            continue
        ends = (source, target) if forward else (target, source)
        crosses = setting.across == "pipeline"
        link = measured.across if crosses else measured.inside
        # Replicas beside each other send at the same moments through the one long link.
        sharing = setting.dp if crosses else 1
        seconds = sharing * activation / link.bytes_per_second
        transfers.append(Transfer((link.name, *ends), seconds, link.latency_seconds))
    return tuple(transfers)


def _gradient(setting: Setting, measured: Measured, schedule: Schedule) -> dict[tuple[int, int], Collective]:
    collectives = {}
    for device, stages in enumerate(schedule.chunk_stages):
        for chunk, stage in enumerate(stages):
            size = gradient_bytes(setting, stage)
            # Across: all stages of a building go through one link. Inside: each pair has its own.
            link = "across" if setting.across == "data" else ("inside", device)
            latency = _all_reduce_seconds(setting, measured, _NOTHING_BYTES)
            seconds = _all_reduce_seconds(setting, measured, size) - latency
            collectives[device, chunk] = Collective(link, seconds, latency)
    return collectives


def _all_reduce_seconds(setting: Setting, measured: Measured, size: float) -> float:
    if setting.exchange == "gloo":
        return gloo_all_reduce_seconds(size, setting.dp, measured.across)
    algorithm = "hierarchical" if setting.exchange == "hierarchical" else "flat"
    # Measured links are at the rate that messages reach; nothing is to be taken off them again.
    fabric = Fabric(cluster_of(setting, measured), algorithm=algorithm, ideal=True)
    if setting.across == "pipeline":
        group: Group = (LevelSpan(setting.dp, 1), LevelSpan(1, 1))
    else:
        group = (LevelSpan(setting.dp // 2, 1), LevelSpan(2, 1))
    return collective_seconds(fabric, "all_reduce", group, size)


def cluster_of(setting: Setting, measured: Measured) -> Cluster:
    """The testbed as users describe clusters of their own: a YAML file of devices and links, and levels."""
    levels = (
        LevelSpec(name="building", count=setting.ranks_per_building, link="inside"),
        LevelSpec(name="campus", count=2, link="across"),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "testbed.yaml"
        path.write_text(yaml.safe_dump(hardware(measured)))
        return catalog(path).build(ClusterSpec(name="testbed", device=DEVICE, levels=levels))


def hardware(measured: Measured) -> dict[str, Any]:
    """What was measured, in the form of the package's catalog files."""
    tokens = SHAPE["micro_batch"] * SHAPE["seq"]
    # Of the four matrix products of a layer, per second of its forward.
    products = 24 * tokens * SHAPE["hidden"] ** 2
    rate = products / min(parts["layer"]["F"] for parts in measured.seconds)
    memory = {"name": "dram", "gibibytes": 1, "gigabytes_per_second": 10}
    return {
        "devices": {DEVICE: {"generation": "cpu", "flops": {"fp32": rate}, "memory": [memory]}},
        "links": {
            link.name: {
                "gigabytes_per_second": link.bytes_per_second / 1e9,
                "latency_seconds": link.latency_seconds,
            }
            for link in (replace(measured.inside, name="inside"), measured.across)
        },
    }
