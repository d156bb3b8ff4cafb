"""From a solution over arrays to what a plan file holds: rectangles of tables, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from megalith.core.bounds import checked_bound
from megalith.core.schema import DTYPE_BYTES, TableSpec
from megalith.cost.embedding import state_bytes
from megalith.sharding.plan import Placement, Shard
from megalith.sharding.plan_estimate import PhaseEstimate, PlanEstimate, TableEstimate, WorkerEstimate
from megalith.sharding.planner.enumerate import slice_widths
from megalith.sharding.planner.estimate.shard_counts import largest_first, rotation, row_cut
from megalith.sharding.planner.loads import imbalance, loads_of, phase_seconds, step_seconds
from megalith.sharding.planner.types import (
    NUM_PHASES,
    PHASES,
    Floats,
    FoundPlacement,
    PlacementProblem,
    PlanInputs,
)
from megalith.sharding.store_cuts import Store, given_kind, is_over_tiers


def placements_of(
    inputs: PlanInputs, problem: PlacementProblem, found: FoundPlacement
) -> tuple[Placement, ...]:
    """Rectangles of every table, and the store and memory that keep their rows."""
    placements = tuple(_placement(inputs, problem, found, table) for table in range(problem.num_tables))
    given = inputs.memory.cache_bytes_per_worker
    return placements if given is None else _shared_caches(inputs, placements, given)


def _shared_caches(
    inputs: PlanInputs, placements: tuple[Placement, ...], given: int
) -> tuple[Placement, ...]:
    """The same with the bytes given to each worker's caches shared out, in proportion to what its shards
    hold."""
    row_bytes = _row_bytes(inputs)
    held = np.zeros(inputs.topology.world_size)
    over_tiers = {table.name for table in inputs.tables if is_over_tiers(table)}
    cached_tables = {
        placement.table
        for placement in placements
        if placement.store == "tiered" or placement.table in over_tiers
    }
    for placement in placements:
        for shard in placement.shards if placement.table in cached_tables else ():
            held[shard.worker] += shard.num_rows * row_bytes[placement.table](shard.dim)
    cached = np.minimum(1.0, given / np.maximum(held, 1.0))

    def shared(placement: Placement) -> Placement:
        size = row_bytes[placement.table]
        shards = [
            shard.model_copy(
                update={"cache_bytes": int(shard.num_rows * size(shard.dim) * cached[shard.worker])}
            )
            for shard in placement.shards
        ]
        return placement.model_copy(update={"shards": tuple(shards)})

    return tuple(
        shared(placement) if placement.table in cached_tables else placement for placement in placements
    )


def _row_bytes(inputs: PlanInputs) -> dict[str, Callable[[int], int]]:
    """Bytes of a row of so many columns with its optimizer state, by table."""
    optimizer = inputs.workload.optimizer

    def of(table: TableSpec) -> Callable[[int], int]:
        return lambda dim: int(dim * DTYPE_BYTES[table.dtype] + state_bytes(optimizer, dim))

    return {table.name: of(table) for table in inputs.tables}


def _placement(
    inputs: PlanInputs, problem: PlacementProblem, found: FoundPlacement, number: int
) -> Placement:
    table, position = problem.tables[number], int(found.solution.choice[number])
    option, groups = problem.options[position], found.solution.groups[number].tolist()
    width = int(problem.width[position])
    statistics, batch = inputs.statistics[table.name], problem.global_batch
    rows, columns = (0, table.rows), (0, table.dim)
    slices = list(pairwise(np.cumsum((0, *slice_widths(table.dim, option))).tolist()))
    if option.kind == "data_parallel":
        cells = [(worker, rows, columns) for worker in range(problem.world_size)]
    elif option.kind == "table_column":
        cells = [(groups[0] * width + member, rows, piece) for member, piece in enumerate(slices)]
    elif option.parts:
        parts = largest_first(row_cut(table, statistics, option, option.parts, batch).tolist())
        cells = [(worker, piece, columns) for worker, piece in zip(groups, parts, strict=True)]
    else:
        parts = [rows]
        if option.row_cut is not None:
            parts = list(pairwise(row_cut(table, statistics, option, width, batch).tolist()))
        by = rotation(number, option, width)
        cells = [
            (group * width + (member + by) % width, part, piece)
            for group, piece in zip(groups, slices, strict=True)
            for member, part in enumerate(parts)
        ]
    tier = problem.topology.device.memory[option.tier].name
    if not option.tier:
        # There may be a hundred thousand; `ShardingPlan.check` looks at them all.
        dense = tuple(
            Shard.model_construct(worker=worker, rows=part, columns=piece) for worker, part, piece in cells
        )
        store: Store = given_kind(table) or "dense"
        return Placement(table=table.name, kind=option.kind, store=store, tier=tier, shards=dense)
    size = _row_bytes(inputs)[table.name]
    shards = [
        Shard(
            worker=worker,
            rows=part,
            columns=piece,
            cache_bytes=int(option.cached * (part[1] - part[0]) * size(piece[1] - piece[0])),
        )
        for worker, part, piece in cells
    ]
    behind: Store = given_kind(table) or "tiered"
    return Placement(table=table.name, kind=option.kind, store=behind, tier=tier, shards=tuple(shards))


def estimate_of(
    inputs: PlanInputs, problem: PlacementProblem, found: FoundPlacement, planning_seconds: float
) -> PlanEstimate:
    """What a solution costs, worker by worker and table by table."""
    loads = loads_of(problem, found.solution)
    step = step_seconds(problem, loads, found.solution)
    topology, tiers = problem.topology, [tier.name for tier in problem.topology.device.memory]
    phases, lasting = loads[:, :NUM_PHASES], phase_seconds(topology, loads)
    bound_seconds = checked_bound(found.bound_seconds, step, f"the plan found by {found.algorithm}")
    return PlanEstimate(
        step_seconds=step,
        lower_bound_seconds=bound_seconds,
        gap=step / bound_seconds - 1 if bound_seconds else 0.0,
        imbalance=imbalance(loads, problem.weights),
        bound_by=_bound_by(problem, phases),
        algorithm=found.algorithm,
        planning_seconds=planning_seconds,
        hardware=topology.cluster.name,
        device=topology.device.name,
        memory_capacity_bytes=dict(zip(tiers, problem.capacity.tolist(), strict=True)),
        phases={
            name: PhaseEstimate(
                seconds=float(lasting[number]),
                mean_seconds=float(phases[:, number].mean()),
                worker=int(phases[:, number].argmax()),
                counted=bool(problem.weights[number]),
            )
            for number, name in enumerate(PHASES)
        },
        workers=tuple(
            WorkerEstimate(
                worker=worker,
                compute_seconds=float(row[1] + row[3]),
                communication_seconds=float(row[0] + row[2]),
                phases=dict(zip(PHASES, row[:NUM_PHASES].tolist(), strict=True)),
                memory_bytes=dict(zip(tiers, row[NUM_PHASES:].tolist(), strict=True)),
            )
            for worker, row in enumerate(loads)
        ),
        tables=tuple(
            _table_estimate(inputs, problem, found, number, tiers) for number in range(problem.num_tables)
        ),
    )


def _table_estimate(
    inputs: PlanInputs, problem: PlacementProblem, found: FoundPlacement, number: int, tiers: list[str]
) -> TableEstimate:
    table, position = problem.tables[number], int(found.solution.choice[number])
    option, total = problem.options[position], problem.total[position]
    return TableEstimate(
        table=table.name,
        kind=option.kind,
        columns=option.columns,
        row_cut=option.row_cut,
        tier=tiers[option.tier],
        cached_rows=option.cached,
        workers=int(problem.width[position]) * len(found.solution.groups[number]),
        rows=table.rows,
        dim=table.dim,
        lookups=inputs.statistics[table.name].lookups,
        seconds=float(total[:NUM_PHASES] @ problem.weights),
        bytes=float(total[NUM_PHASES + option.tier]),
    )


def _bound_by(problem: PlacementProblem, phases: Floats) -> str:
    """What a faster one of would speed the step up most."""
    largest = phases.max(axis=0) * problem.weights
    exchanged, computed = largest[0] + largest[2], largest[1] + largest[3]
    if exchanged > computed:
        return f"link:{problem.topology.slowest_link}"
    return f"memory:{problem.topology.device.memory[0].name}"
