"""`make_plan`: from tables and a cluster to the best plan found, and how far from the best it can be.

    plan = make_plan(tables, catalog().cluster("zionex"), global_batch=65536)
    plan.estimate["step_seconds"], plan.estimate["gap"]

"greedy" places whole tables as TorchRec and Neo do by default; "karmarkar_karp" takes the options that the
bound prefers and differences them; "mip" goes on from a good plan to the best one, where the problem is
small; "best" tries all of them. Local search follows each unless `improve=False`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from megalith.core.bounds import checked_bound
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import TableSpec, check_tables
from megalith.cost.embedding import CACHE_SHARE, OPTIMIZER_VALUES, state_bytes
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ExchangeConfig, Placement, Shard, ShardingPlan
from megalith.sharding.planner.bound.branch_and_bound import Bound, lower_bound
from megalith.sharding.planner.bound.relaxation import Relaxation
from megalith.sharding.planner.clock import Clock, Deadline, StepClock
from megalith.sharding.planner.enumerate import CACHED_ROWS, MIN_DIM, Way, column_widths, ways_of
from megalith.sharding.planner.estimate.estimator import Workload, build_problem, largest_first, row_cut
from megalith.sharding.planner.partition.choices import good_choices
from megalith.sharding.planner.partition.greedy import most_spread, place_balanced, table_wise_greedy
from megalith.sharding.planner.partition.karmarkar_karp import karmarkar_karp
from megalith.sharding.planner.partition.local_search import improve as search
from megalith.sharding.planner.partition.mip import solve_exactly
from megalith.sharding.planner.partition.packing import packed
from megalith.sharding.planner.shortage import lean_problem, refusal
from megalith.sharding.planner.statistics import TableStatistics, default_statistics
from megalith.sharding.planner.topology import Workers, workers_of
from megalith.sharding.planner.types import (
    NUM_PHASES,
    PHASES,
    Floats,
    Problem,
    Solution,
    imbalance,
    loads_of,
    phase_seconds,
    step_seconds,
)

Algorithm = Literal["best", "greedy", "karmarkar_karp", "mip"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
MOST_EXACT_SECONDS = 3.0
_TRIALS, _MOST_TRIALS = 2, 8
_TRIAL_SHARE = 0.2
"""Starts that are searched on from, where searches end by themselves more of them, and the part of the time
left that each gets before the best goes on."""
_SEARCHED = 0.93
"""When the search ends, as a share of the time given."""
TOLERANCE = 2e-3
"""A plan this close to the bound is good enough to stop at."""


def make_plan(
    tables: Sequence[TableSpec],
    cluster: Cluster,
    *,
    world_size: int | None = None,
    workers_per_node: int | None = None,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer_kind: str = "rowwise_adagrad",
    exchange: ExchangeConfig | None = None,
    algorithm: str = "best",
    improve: bool = True,
    pipelined: bool = False,
    min_dim: int = MIN_DIM,
    seconds: float = 9.0,
    steps: int | None = None,
) -> ShardingPlan:
    """The plan with the shortest predicted embedding part of a step; PlanError says what does not fit.

    `statistics` are by table; tables without get the defaults. `pipelined` says that the ids of the next
    batch travel under the computation of this one. `seconds` is how long to look for a better plan at most;
    with `steps` the search is counted instead, and finds the same plan on any machine and under any load.
    """
    watch = Clock()
    clock = watch if steps is None else StepClock(seconds / steps)
    check_tables(tables)
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"Unknown algorithm '{algorithm}'; {nearest(algorithm, ALGORITHMS)}")
    if optimizer_kind not in OPTIMIZER_VALUES:
        raise ConfigError(
            f"Unknown optimizer '{optimizer_kind}'; {nearest(optimizer_kind, [*OPTIMIZER_VALUES])}"
        )
    workers = workers_of(cluster, world_size, workers_per_node)
    workload = Workload(global_batch, optimizer_kind, exchange or ExchangeConfig(), pipelined)
    known = statistics or {}
    traffic = {table.name: known.get(table.name) or default_statistics(table) for table in tables}
    found = None
    for tiers, cached in _tiers(tables, traffic, workers, workload, min_dim):
        ways = [ways_of(table, traffic[table.name], workers, tiers, min_dim, cached) for table in tables]
        problem = build_problem(tables, ways, traffic, workers, workload)
        found = _find(problem, algorithm, improve, clock, seconds)
        if found is not None:
            break
    if found is None:
        raise refusal(tables, traffic, workers, workload, min_dim)
    solution, bound_seconds, name = found
    plan = ShardingPlan(
        world_size=workers.world_size,
        workers_per_node=workers.per_node,
        placements=tuple(
            _placement(problem, traffic, solution, table) for table in range(problem.num_tables)
        ),
        exchange=workload.exchange,
        estimate=_estimate(problem, traffic, solution, bound_seconds, name, watch.now()),
    )
    plan.check(tables)
    return plan


def _tiers(
    tables: Sequence[TableSpec],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
    min_dim: int,
) -> Iterator[tuple[Sequence[int], Sequence[float]]]:
    """What to try in turn: memory tiers, and shares of tables on slower ones that the first caches.

    A cache of a fifth is usual. Where that leaves no room, tables may choose between the largest share that
    does and smaller ones.
    """
    every = range(len(workers.device.memory))
    if len(every) == 1 or _fast_memory_suffices(tables, workers, workload.optimizer):
        yield [0], ()
        return
    for place, share in enumerate(CACHED_ROWS):
        lean = lean_problem(tables, traffic, workers, workload, min_dim, (share,))
        if Relaxation(lean).solve(np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)) is not None:
            yield every, CACHED_ROWS[:1] if place == 0 else CACHED_ROWS[place : place + 2]


def _fast_memory_suffices(tables: Sequence[TableSpec], workers: Workers, optimizer: str) -> bool:
    needed = sum(table.weight_bytes + table.rows * state_bytes(optimizer, table.dim) for table in tables)
    return bool(needed <= 0.9 * CACHE_SHARE * workers.device.bytes * workers.world_size)


def _find(
    problem: Problem, algorithm: str, improve: bool, clock: Clock, seconds: float
) -> tuple[Solution, float, str] | None:
    """The plan, the bound and what found it; None if nothing fits."""
    if not problem.num_tables:
        return Solution(np.empty(0, dtype=np.int64), []), problem.latency_seconds, algorithm
    bound = lower_bound(problem, clock.after(0.3 * seconds))
    if bound is None:
        return None
    # Where the bound took longer than it should, plans to begin with still get some time.
    enough = max(0.45 * seconds, clock.now() + 0.15 * seconds)
    starts = _starts(problem, bound, algorithm, clock.after(enough))
    if not starts:
        # Rather late than refused.
        tight = packed(problem, clock.after(clock.now() + seconds))
        spread = tight or place_balanced(problem, most_spread(problem), by_memory=True)
        if spread is None:
            return None
        starts = [("spread" if tight is None else "packed", spread)]
    target = bound.seconds * (1 + TOLERANCE)
    proven = bound.seconds
    if improve:
        starts = _improved(problem, starts, clock, seconds, target)
    name, best = min(starts, key=lambda start: _seconds(problem, start[1]))
    if algorithm in ("best", "mip") and _seconds(problem, best) > proven * (1 + 1e-6):
        left = min(max(0.5, seconds - clock.now()), MOST_EXACT_SECONDS)
        exact = solve_exactly(problem, bound, best, None if clock.counted else left)
        if exact is not None:
            better, proven = exact[0], max(proven, exact[1])
            if algorithm == "mip" or _seconds(problem, better) < _seconds(problem, best) * (1 - 1e-9):
                name, best = "mip", better
    return best, proven, name


def _improved(
    problem: Problem, starts: list[tuple[str, Solution]], clock: Clock, seconds: float, target: float
) -> list[tuple[str, Solution]]:
    """Searches on from the most promising starts for a while each, then from the best for the rest."""
    tried, hurried = [], False
    for number, (name, start) in enumerate(starts[:_MOST_TRIALS]):
        now = clock.now()
        left = _SEARCHED * seconds - now
        if number and (left <= 0 or (hurried and number >= _TRIALS)):
            break
        trial_end = clock.after(now + left * (1.0 if len(starts) == 1 else _TRIAL_SHARE))
        tried.append((f"{name} + local search", search(problem, start, trial_end, target)))
        hurried |= trial_end.passed
    # Starts that time left untried may be better than what was found from the others.
    name, best = min([*tried, *starts], key=lambda one: _seconds(problem, one[1]))
    return [(name, search(problem, best, clock.after(_SEARCHED * seconds), target))]


def _starts(problem: Problem, bound: Bound, algorithm: str, deadline: Deadline) -> list[tuple[str, Solution]]:
    """Plans to begin with."""
    found: list[tuple[str, Solution | None]] = []
    if algorithm in ("best", "mip"):
        # Balanced plans come ranked by where a search from them should end; the quickest as it is may differ.
        good = [solution for _, solution in good_choices(problem, bound.usable, deadline, bound.memory_price)]
        good += [solution for solution in [place_balanced(problem, bound.choice)] if solution is not None]
        quickest = sorted(good, key=lambda solution: _seconds(problem, solution))
        found += [("balanced", solution) for solution in _distinct([*good[:1], *quickest[:1], *good[1:]])]
    if algorithm in ("best", "karmarkar_karp"):
        found.append(("karmarkar_karp", karmarkar_karp(problem, bound.choice)))
    if algorithm in ("best", "greedy"):
        found.append(("greedy", table_wise_greedy(problem)))
    usable = [(name, solution) for name, solution in found if solution is not None]
    if algorithm == "best":
        # On small problems any start may lead furthest, and each is searched in no time.
        first = usable[:2]
        rest = sorted(usable[2:], key=lambda start: _seconds(problem, start[1]))
        usable = [*first, *rest]
    return usable


def _distinct(solutions: Sequence[Solution]) -> list[Solution]:
    """Without those that choose the same options as an earlier one."""
    kept: dict[bytes, Solution] = {}
    for solution in solutions:
        kept.setdefault(solution.choice.tobytes(), solution)
    return list(kept.values())


def _seconds(problem: Problem, solution: Solution) -> float:
    return step_seconds(problem, loads_of(problem, solution), solution)


def _placement(
    problem: Problem, traffic: Mapping[str, TableStatistics], solution: Solution, number: int
) -> Placement:
    """Rectangles of one table."""
    table, option = problem.tables[number], int(solution.choice[number])
    way, groups = problem.ways[option], solution.groups[number].tolist()
    width = int(problem.width[option])
    whole_rows, whole_columns = (0, table.rows), (0, table.dim)
    if way.kind == "data_parallel":
        shards = [
            Shard(worker=worker, rows=whole_rows, columns=whole_columns)
            for worker in range(problem.world_size)
        ]
        return Placement(table=table.name, kind=way.kind, shards=tuple(shards))
    ends = np.cumsum((0, *column_widths(table.dim, way.columns))).tolist()
    slices = list(pairwise(ends))
    if way.kind == "table_column":
        shards = [
            Shard(worker=groups[0] * width + place, rows=whole_rows, columns=columns)
            for place, columns in enumerate(slices)
        ]
        return Placement(table=table.name, kind=way.kind, shards=tuple(shards))
    if way.parts:
        pieces = largest_first(
            row_cut(table, traffic[table.name], way, way.parts, problem.global_batch).tolist()
        )
        shards = [
            Shard(worker=worker, rows=piece, columns=whole_columns)
            for worker, piece in zip(groups, pieces, strict=True)
        ]
        return Placement(table=table.name, kind=way.kind, shards=tuple(shards))
    rows = [whole_rows]
    if way.row_cut is not None:
        cuts = row_cut(table, traffic[table.name], way, width, problem.global_batch).tolist()
        rows = list(pairwise(cuts))
    shards = [
        Shard(worker=group * width + place, rows=piece, columns=columns)
        for group, columns in zip(groups, slices, strict=True)
        for place, piece in enumerate(rows)
    ]
    return Placement(table=table.name, kind=way.kind, shards=tuple(shards))


def _estimate(
    problem: Problem,
    traffic: Mapping[str, TableStatistics],
    solution: Solution,
    bound_seconds: float,
    algorithm: str,
    planning_seconds: float,
) -> dict[str, Any]:
    loads = loads_of(problem, solution)
    step = step_seconds(problem, loads, solution)
    tiers = [tier.name for tier in problem.workers.device.memory]
    phases, lasting = loads[:, :NUM_PHASES], phase_seconds(problem.workers, loads)
    bound_seconds = checked_bound(bound_seconds, step, f"the plan found by {algorithm}")
    return {
        "step_seconds": step,
        "lower_bound_seconds": bound_seconds,
        "gap": step / bound_seconds - 1 if bound_seconds else 0.0,
        "imbalance": imbalance(loads, problem.weights),
        "bound_by": _bound_by(problem, phases),
        "algorithm": algorithm,
        "planning_seconds": planning_seconds,
        "hardware": problem.workers.cluster.name,
        "device": problem.workers.device.name,
        "memory_capacity_bytes": dict(zip(tiers, problem.capacity.tolist(), strict=True)),
        "phases": {
            name: {
                "seconds": float(lasting[place]),
                "mean_seconds": float(phases[:, place].mean()),
                "worker": int(phases[:, place].argmax()),
                "counted": bool(problem.weights[place]),
            }
            for place, name in enumerate(PHASES)
        },
        "workers": [
            {
                "worker": worker,
                "compute_seconds": float(row[1] + row[3]),
                "communication_seconds": float(row[0] + row[2]),
                "phases": dict(zip(PHASES, row[:NUM_PHASES].tolist(), strict=True)),
                "memory_bytes": dict(zip(tiers, row[NUM_PHASES:].tolist(), strict=True)),
            }
            for worker, row in enumerate(loads)
        ],
        "tables": [
            _table_estimate(problem, traffic, solution, number, tiers) for number in range(problem.num_tables)
        ],
    }


def _table_estimate(
    problem: Problem,
    traffic: Mapping[str, TableStatistics],
    solution: Solution,
    number: int,
    tiers: list[str],
) -> dict[str, Any]:
    table, option = problem.tables[number], int(solution.choice[number])
    way: Way = problem.ways[option]
    total = problem.total[option]
    return {
        "table": table.name,
        "kind": way.kind,
        "columns": way.columns,
        "row_cut": way.row_cut,
        "tier": tiers[way.tier],
        "cached_rows": way.cached,
        "workers": int(problem.width[option]) * len(solution.groups[number]),
        "rows": table.rows,
        "dim": table.dim,
        "lookups": traffic[table.name].lookups,
        "seconds": float(total[:NUM_PHASES] @ problem.weights),
        "bytes": float(total[NUM_PHASES + way.tier]),
    }


def _bound_by(problem: Problem, phases: Floats) -> str:
    """What a faster one of would speed the step up most."""
    largest = phases.max(axis=0) * problem.weights
    exchanged, computed = largest[0] + largest[2], largest[1] + largest[3]
    if exchanged > computed:
        return f"link:{problem.workers.slowest_link}"
    return f"memory:{problem.workers.device.memory[0].name}"
