"""What a plan needs besides its workers: readers and the network that brings their data; and the same model
on an asynchronous parameter-server system of processors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from megalith.cli.output import print_table, say

if TYPE_CHECKING:
    from megalith.cli.plan.inputs import PlanRequest
    from megalith.cost.ingestion import Ingestion, SampleShape
    from megalith.cost.parameter_server import ParameterServerSystem
    from megalith.sharding.plan import ShardingPlan
    from megalith.sharding.planner.types import PlanInputs

NEO_SPEEDUP = 40.0
"""That Neo's abstract reports over the system before it (arXiv 2104.05158)."""
TRAINERS = (1, 16, 64, 256)
"""Sizes of the system that is compared, where none is asked for."""


@dataclass(frozen=True, slots=True)
class FeedingOptions:
    """The options of the command that say who reads and what to compare with."""

    readers: str
    from_raw: bool
    samples_per_second: float | None
    against: str | None
    trainers: int | None
    servers: int | None


@dataclass(frozen=True, slots=True)
class FedPlan:
    """A plan's rate with its readers, and what it was compared with."""

    step_seconds: float
    layer_seconds: float | None
    """Of `step_seconds`; None where the layers are not known."""
    feeding: Ingestion
    against: str | None
    systems: tuple[ParameterServerSystem, ...]
    """With rising numbers of trainers."""
    trainers_of_neo: float | None
    """Than so many the plan is as many times quicker as Neo reports, while their servers keep up."""

    @property
    def samples_per_second(self) -> float:
        """Of the plan, data included."""
        return self.feeding.fed_samples_per_second

    def to_dict(self) -> dict[str, Any]:
        """What the command's JSON has of it."""
        found: dict[str, Any] = {
            "ingestion": self.feeding.to_dict(),
            "whole_step_seconds": self.step_seconds,
            "layer_seconds": self.layer_seconds,
        }
        if self.against is not None:
            found["against"] = {
                "cluster": self.against,
                "trainers_at_40x": self.trainers_of_neo,
                "systems": [
                    {**system.to_dict(), "speedup": self.samples_per_second / system.samples_per_second}
                    for system in self.systems
                ],
            }
        return found


def feed(made: ShardingPlan, inputs: PlanInputs, request: PlanRequest, options: FeedingOptions) -> FedPlan:
    """The plan with its readers: layers are taken to follow the tables, nothing hidden under anything."""
    from megalith.cost.ingestion import ingestion
    from megalith.cost.operators import mlp_seconds
    from megalith.cost.parameter_server import PASSES
    from megalith.hardware.catalog import find_cluster
    from megalith.hardware.cluster import Cluster

    assert made.estimate is not None
    sample, mflops = request.model_facts(inputs)
    topology, batch = inputs.topology, inputs.workload.global_batch
    layers = None
    if mflops is not None:
        flops = PASSES * mflops * 1e6 * batch / topology.world_size
        layers = mlp_seconds(topology.device, topology.constants, "tf32", flops)
    step = made.estimate.step_seconds + (layers or 0.0)
    rate = options.samples_per_second or batch / step
    readers: Cluster = find_cluster(options.readers)
    feeding = ingestion(sample, rate, request.cluster(), topology.nodes, readers, from_raw=options.from_raw)
    fed = FedPlan(step, layers, feeding, None, (), None)
    return fed if options.against is None else _compare(fed, inputs, sample, mflops, options)


def _compare(
    fed: FedPlan, inputs: PlanInputs, sample: SampleShape, mflops: float | None, options: FeedingOptions
) -> FedPlan:
    from megalith.core.errors import ConfigError
    from megalith.core.schema import DTYPE_BYTES
    from megalith.cost.embedding import state_bytes
    from megalith.cost.parameter_server import ParameterServerTable, parameter_server_system
    from megalith.hardware.catalog import find_cluster

    if mflops is None:
        raise ConfigError(
            "--against compares whole steps, and the layers are not known; add mflops_per_sample (forward) "
            "to the file of tables, or plan a recipe."
        )
    assert options.against is not None
    hosts, optimizer = find_cluster(options.against), inputs.workload.optimizer
    tables = []
    for table in inputs.tables:
        state, lookups = float(state_bytes(optimizer, table.dim)), inputs.statistics[table.name].lookups
        tables.append(
            ParameterServerTable(
                (table.weight_bytes + state * table.rows) * inputs.held_share(table),
                lookups,
                table.dim,
                DTYPE_BYTES[table.dtype],
                state,
                lookups if table.pooling == "none" else float(len(table.features)),
            )
        )

    def system(trainers: int) -> ParameterServerSystem:
        return parameter_server_system(
            tables,
            hosts,
            trainers=trainers,
            flops_per_sample=mflops * 1e6,
            sample_bytes=sample.bytes,
            servers=options.servers,
        )

    neo = fed.samples_per_second / NEO_SPEEDUP / system(1).trainer_samples_per_second
    counts = {*TRAINERS, max(1, round(neo))} if options.trainers is None else {options.trainers}
    systems = tuple(system(count) for count in sorted(counts))
    return replace(fed, against=options.against, systems=systems, trainers_of_neo=neo)


def show_feeding(fed: FedPlan) -> None:
    """Prints rate, network and readers, and the comparison if there is one."""
    from megalith.core.units import format_bytes, format_count, format_duration

    feeding = fed.feeding
    step = f"{format_duration(fed.step_seconds)} a step"
    what = (
        "layers not counted"
        if fed.layer_seconds is None
        else f"{format_duration(fed.layer_seconds)} of layers in it"
    )
    say(
        f"Data: {format_count(feeding.samples_per_second)} samples/s ({step}, {what}) of "
        f"{format_bytes(feeding.sample_bytes)} are {format_bytes(feeding.bytes_per_second)}/s into "
        f"{feeding.nodes:,} nodes"
        + (
            "; the cluster names no front-end network (`front_end`)."
            if feeding.front_end_share is None
            else f", {feeding.front_end_share:.0%} of what their {feeding.front_end} carry."
        )
    )
    if feeding.front_end_share is not None and feeding.front_end_share > 1:
        say(
            f"The front-end network is too narrow: training waits for data at "
            f"{format_count(feeding.fed_samples_per_second)} samples/s; widen it, or send fewer bytes."
        )
    say(
        f"Readers, from {'raw' if feeding.from_raw else 'prepared'} files: {feeding.reader_cores:,} cores; "
        f"{feeding.reader_hosts:,} hosts of {feeding.reader_device}, which {feeding.reader_bound_by} bound."
    )
    if fed.against is not None:
        _show_comparison(fed)


def _show_comparison(fed: FedPlan) -> None:
    from megalith.core.units import format_count

    rows = [
        [
            f"{system.trainers:,}",
            f"{system.servers:,}",
            format_count(system.samples_per_second),
            system.bound_by,
            f"{fed.samples_per_second / system.samples_per_second:.3g}x",
        ]
        for system in fed.systems
    ]
    columns = ["trainers", "servers", "samples/s at most", "bound by", "this plan"]
    print_table(f"Beside asynchronous parameter servers on {fed.against}, data included", columns, rows)
    assert fed.trainers_of_neo is not None
    count = max(1, round(fed.trainers_of_neo))
    say(
        f"{NEO_SPEEDUP:.0f} times quicker, as Neo reports, is this plan than {count:,} trainers whose "
        "servers keep up. More of them are quicker, and train on staler weights."
    )
