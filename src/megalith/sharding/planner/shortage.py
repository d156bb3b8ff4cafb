"""The error for tables that do not fit: what is short, by how much, and the smallest change that would do.

Every change that is named has been tried: tables are placed under it, by bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import numpy as np

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.hardware.cluster import Cluster
from megalith.sharding.planner.memory import lean_problem
from megalith.sharding.planner.partition.greedy import most_spread, place_balanced
from megalith.sharding.planner.topology import topology_of
from megalith.sharding.planner.types import NUM_PHASES, PlacementProblem, PlanInputs

_MOST_WORKERS = 65_536
_Fits = Callable[[PlanInputs], bool]


def shortage_error(inputs: PlanInputs, min_dim: int) -> PlanError:
    """The error, with one sentence."""

    def fits(changed: PlanInputs) -> bool:
        return fits_by_bytes(changed, min_dim)

    problem = lean_problem(inputs, min_dim)
    changes = [
        change
        for change in (
            _smaller_optimizer(inputs, fits),
            _half_precision(inputs, fits),
            _more_workers(inputs, fits),
        )
        if change
    ]
    ends = f"; take {', or '.join(changes)}." if changes else "; take fewer or smaller tables."
    return PlanError(_shortage(problem) + ends)


def fits_by_bytes(inputs: PlanInputs, min_dim: int) -> bool:
    """Whether the tables find room when nothing but bytes counts."""
    problem = lean_problem(inputs, min_dim)
    return place_balanced(problem, most_spread(problem), by_memory=True) is not None


def _shortage(problem: PlacementProblem) -> str:
    """What is short and by how much."""
    size = problem.world_size
    used = sorted({0, *(option.tier for option in problem.options)})
    all_room = float(problem.capacity[used].sum())
    room = float(problem.capacity[used].max())
    smallest = np.array(
        [problem.peak[begin:end, NUM_PHASES:].max(axis=1).min() for begin, end in problem.option_ranges()]
    )
    needed = np.array(
        [problem.total[begin:end, NUM_PHASES:].max(axis=1).min() for begin, end in problem.option_ranges()]
    )
    total, held = float(needed.sum()), all_room * size
    if total > held:
        return (
            f"The tables need {format_bytes(total)} with their optimizer state and {size:,} "
            f"worker{'s' if size > 1 else ''} hold{'' if size > 1 else 's'} {format_bytes(held)} for tables "
            f"({format_bytes(total - held)} short)"
        )
    largest = int(np.argmax(smallest))
    if smallest[largest] > room:
        name = problem.tables[largest].name
        over = format_bytes(smallest[largest] - room)
        return (
            f"The smallest piece of table '{name}' needs {format_bytes(smallest[largest])} with its "
            f"optimizer state and a worker has {format_bytes(room)} for tables ({over} short)"
        )
    return (
        f"The tables need {format_bytes(total)} with their optimizer state; {size:,} workers hold "
        f"{format_bytes(held)}, but no way was found to cut the tables into pieces that fit"
    )


def _smaller_optimizer(inputs: PlanInputs, fits: _Fits) -> str:
    workload = inputs.workload
    if workload.optimizer in ("rowwise_adagrad", "sgd"):
        return ""
    if fits(replace(inputs, workload=replace(workload, optimizer="rowwise_adagrad"))):
        return "optimizer rowwise_adagrad instead of " + workload.optimizer
    return ""


def _half_precision(inputs: PlanInputs, fits: _Fits) -> str:
    """The fewest of the largest tables in half precision."""
    single = sorted(
        (table for table in inputs.tables if table.dtype == "float32"), key=lambda table: -table.weight_bytes
    )

    def halved(count: int) -> tuple[TableSpec, ...]:
        names = {table.name for table in single[:count]}
        return tuple(
            table.model_copy(update={"dtype": "float16"}) if table.name in names else table
            for table in inputs.tables
        )

    count = _smallest(lambda number: fits(replace(inputs, tables=halved(number))), len(single))
    if count is None:
        return ""
    if count == 1:
        return f"dtype float16 for table '{single[0].name}'"
    last = single[count - 1].name
    return f"dtype float16 for the {count} largest tables (from '{single[0].name}' to '{last}')"


def _more_workers(inputs: PlanInputs, fits: _Fits) -> str:
    size, cluster = inputs.topology.world_size, inputs.topology.cluster

    def enough(more: int) -> bool:
        return fits(replace(inputs, topology=topology_of(_grown(cluster, size + more), size + more)))

    more = _smallest(enough, _MOST_WORKERS - size)
    return "" if more is None else f"{size + more:,} workers of the same memory ({more:,} more)"


def _grown(cluster: Cluster, size: int) -> Cluster:
    """The cluster with as many members of its outermost level as `size` workers need. Its devices are
    workers already, so processors are not shared a second time."""
    inner = cluster.devices_within(len(cluster.levels) - 2)
    levels = (*cluster.levels[:-1], replace(cluster.levels[-1], count=ceil(size / inner)))
    device = replace(cluster.device, generation=f"worker-{cluster.device.generation}")
    return replace(cluster, device=device, levels=levels)


def _smallest(enough: Callable[[int], bool], most: int) -> int | None:
    """The least number from 1 for which `enough` holds, doubling and then halving the steps."""
    if most < 1:
        return None
    high = 1
    while not enough(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
