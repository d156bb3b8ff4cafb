"""Which memory tiers a plan needs: the first where all tables fit into it, else slower ones behind caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from megalith.cost.embedding import CACHE_SHARE, state_bytes
from megalith.sharding.planner.bound.relaxation import PlanRelaxation
from megalith.sharding.planner.enumerate import CACHED_ROWS, OptionEnumerator
from megalith.sharding.planner.estimate.estimator import CostEstimator
from megalith.sharding.planner.types import (
    NUM_PHASES,
    MemoryTiers,
    PlacementProblem,
    PlanInputs,
    ShardingOption,
)


def memory_attempts(inputs: PlanInputs, min_dim: int) -> Iterator[MemoryTiers]:
    """What to try in turn: memory tiers, and shares of tables on slower ones that the first caches.

    A cache of a fifth is usual. Where that leaves no room, tables may choose between the largest share that
    does and smaller ones.
    """
    tiers = range(len(inputs.topology.device.memory))
    if len(tiers) == 1 or _first_tier_suffices(inputs):
        yield MemoryTiers([0])
        return
    for number, share in enumerate(CACHED_ROWS):
        lean = lean_problem(inputs, min_dim, (share,))
        if PlanRelaxation(lean).solve(np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)) is not None:
            yield MemoryTiers(tiers, CACHED_ROWS[:1] if number == 0 else CACHED_ROWS[number : number + 2])


def lean_problem(
    inputs: PlanInputs, min_dim: int, cached_rows: Sequence[float] = CACHED_ROWS[-1:]
) -> PlacementProblem:
    """Only options that could save memory: whole, the narrowest slices, equal rows, the smallest caches."""
    memory = MemoryTiers(range(len(inputs.topology.device.memory)), cached_rows)
    lean = []
    for options in OptionEnumerator(min_dim).enumerate(inputs, memory):
        slices = [option.columns for option in options if option.kind in ("table_wise", "column_wise")]
        # A table of too many rows for one worker has no such option.
        most = max(slices, default=1)
        lean.append([option for option in options if _is_lean(option, most)])
    return CostEstimator().estimate(inputs, lean)


def _is_lean(option: ShardingOption, most: int) -> bool:
    if option.kind == "row_wise":
        return option.row_cut == 0.0
    return option.kind == "table_wise" or (option.kind == "column_wise" and option.columns == most)


def _first_tier_suffices(inputs: PlanInputs) -> bool:
    optimizer, topology = inputs.workload.optimizer, inputs.topology
    needed = sum(
        table.weight_bytes + table.rows * state_bytes(optimizer, table.dim) for table in inputs.tables
    )
    return bool(needed <= 0.9 * CACHE_SHARE * topology.device.bytes * topology.world_size)
