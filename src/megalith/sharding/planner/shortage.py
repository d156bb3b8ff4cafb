"""What to say when tables do not fit: what is short, by how much, and the smallest change that would do.

Every change that is named has been tried: tables are placed under it, by bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil

import numpy as np

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.hardware.cluster import Cluster
from megalith.sharding.planner.enumerate import CACHED_ROWS, Way, ways_of
from megalith.sharding.planner.estimate.estimator import Workload, build_problem
from megalith.sharding.planner.partition.greedy import most_spread, place_balanced
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Workers, workers_of
from megalith.sharding.planner.types import NUM_PHASES, Problem

_MOST_WORKERS = 65_536


def refusal(
    tables: Sequence[TableSpec],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
    min_dim: int,
) -> PlanError:
    """The error, with one sentence."""

    def fits(some: Sequence[TableSpec], many: Workers, load: Workload = workload) -> bool:
        return can_be_placed(some, traffic, many, load, min_dim)

    problem = lean_problem(tables, traffic, workers, workload, min_dim)
    changes = [
        change
        for change in (
            _sparing_optimizer(tables, workers, workload, fits),
            _half_precision(tables, workers, fits),
            _more_workers(tables, workers, fits),
        )
        if change
    ]
    ends = f"; take {', or '.join(changes)}." if changes else "; take fewer or smaller tables."
    return PlanError(_shortage(problem) + ends)


def can_be_placed(
    tables: Sequence[TableSpec],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
    min_dim: int,
) -> bool:
    """Whether the tables find room when nothing but bytes counts."""
    problem = lean_problem(tables, traffic, workers, workload, min_dim)
    return place_balanced(problem, most_spread(problem), by_memory=True) is not None


def lean_problem(
    tables: Sequence[TableSpec],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
    min_dim: int,
    cached: Sequence[float] = CACHED_ROWS[-1:],
) -> Problem:
    """Only ways that could save memory: whole, the narrowest slices, equal rows, the smallest caches."""
    tiers = range(len(workers.device.memory))
    ways = []
    for table in tables:
        every = ways_of(table, traffic[table.name], workers, tiers, min_dim, cached)
        slices = [way.columns for way in every if way.kind in ("table_wise", "column_wise")]
        # A table of too many rows for one worker has no such way.
        most = max(slices, default=1)
        ways.append([way for way in every if _lean(way, most)])
    return build_problem(tables, ways, traffic, workers, workload)


def _lean(way: Way, most: int) -> bool:
    if way.kind == "row_wise":
        return way.row_cut == 0.0
    return way.kind == "table_wise" or (way.kind == "column_wise" and way.columns == most)


def _shortage(problem: Problem) -> str:
    """What is short and by how much."""
    size = problem.world_size
    all_room = float(problem.capacity.sum())
    room = float(problem.capacity.max())
    smallest = np.array(
        [
            problem.peak[begin:end, NUM_PHASES:].max(axis=1).min()
            for begin, end in zip(problem.first[:-1], problem.first[1:], strict=True)
        ]
    )
    needed = np.array(
        [
            problem.total[begin:end, NUM_PHASES:].max(axis=1).min()
            for begin, end in zip(problem.first[:-1], problem.first[1:], strict=True)
        ]
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


def _sparing_optimizer(
    tables: Sequence[TableSpec], workers: Workers, workload: Workload, fits: Callable[..., bool]
) -> str:
    if workload.optimizer in ("rowwise_adagrad", "sgd"):
        return ""
    if fits(tables, workers, replace(workload, optimizer="rowwise_adagrad")):
        return "optimizer rowwise_adagrad instead of " + workload.optimizer
    return ""


def _half_precision(tables: Sequence[TableSpec], workers: Workers, fits: Callable[..., bool]) -> str:
    """The fewest of the largest tables in half precision."""
    single = sorted(
        (table for table in tables if table.dtype == "float32"), key=lambda table: -table.weight_bytes
    )

    def halved(count: int) -> list[TableSpec]:
        names = {table.name for table in single[:count]}
        return [
            table.model_copy(update={"dtype": "float16"}) if table.name in names else table
            for table in tables
        ]

    count = _smallest(lambda number: fits(halved(number), workers), len(single))
    if count is None:
        return ""
    if count == 1:
        return f"dtype float16 for table '{single[0].name}'"
    last = single[count - 1].name
    return f"dtype float16 for the {count} largest tables (from '{single[0].name}' to '{last}')"


def _more_workers(tables: Sequence[TableSpec], workers: Workers, fits: Callable[..., bool]) -> str:
    size = workers.world_size

    def enough(more: int) -> bool:
        return fits(tables, workers_of(_grown(workers.cluster, size + more), size + more))

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
