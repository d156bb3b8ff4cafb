"""Which memory tiers a plan needs: the first where all tables fit into it, else slower ones behind caches.

Where the bytes of the caches are given (`MemoryPolicy.cache_bytes_per_worker`) a rule says which tables lie
behind them, on the slowest tier: all but the smallest, as long as these take at most `DENSE_SHARE` of the
bytes together. Each table is cached in proportion to its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from megalith.core.schema import TableSpec
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
from megalith.sharding.store_cuts import has_free_tier, is_over_tiers

_FEW_TABLES = 200
"""Up to so many every table may choose how much of it is cached; for more that would be too many options."""
DENSE_SHARE = 1 / 16
"""Of the bytes given to caches, what tables that stay in memory whole may take besides."""


def memory_attempts(inputs: PlanInputs, min_dim: int) -> Iterator[MemoryTiers]:
    """What to try in turn: memory tiers, and shares of tables on slower ones that the first caches.

    A cache of a fifth is usual. Where that leaves no room, tables may choose between the largest share that
    does and smaller ones.
    """
    tiers = range(len(inputs.topology.device.memory))
    if not inputs.memory.slower_tiers or len(tiers) == 1:
        yield MemoryTiers([0])
        return
    if inputs.memory.cache_bytes_per_worker is not None:
        yield tiers_behind_caches(inputs)
        return
    if _first_tier_suffices(inputs):
        yield MemoryTiers([0])
        return
    if len(inputs.tables) <= _FEW_TABLES:
        yield MemoryTiers(tiers, CACHED_ROWS)
        return
    for number, share in enumerate(CACHED_ROWS):
        lean = lean_problem(inputs, min_dim, (share,))
        if PlanRelaxation(lean).solve(np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)) is not None:
            yield MemoryTiers(tiers, CACHED_ROWS[:1] if number == 0 else CACHED_ROWS[number : number + 2])


def tiers_behind_caches(inputs: PlanInputs) -> MemoryTiers:
    """The memory of each table where caches have a given size: the rule above."""
    given = (inputs.memory.cache_bytes_per_worker or 0) * inputs.topology.world_size
    # Tables whose store is given are not asked.
    free = [table for table in inputs.tables if has_free_tier(table)]
    on_disk = [table for table in inputs.tables if is_over_tiers(table)]
    sizes = {table.name: _table_bytes(inputs, table) for table in (*free, *on_disk)}
    slowest, dense = len(inputs.topology.device.memory) - 1, 0.0
    tiered = {table.name: [slowest] for table in on_disk}
    if sum(sizes.values()) <= given:
        return MemoryTiers([0], [1.0], tiered)
    for name in sorted((table.name for table in free), key=lambda name: (sizes[name], name)):
        dense += sizes[name]
        if dense > DENSE_SHARE * given:
            tiered[name] = [slowest]
    share = min(1.0, given / sum(sizes[name] for name in tiered))
    return MemoryTiers([0], [share], tiered)


def lean_problem(
    inputs: PlanInputs, min_dim: int, cached_rows: Sequence[float] = CACHED_ROWS[-1:]
) -> PlacementProblem:
    """Only options that could save memory: whole, the narrowest slices, equal rows, the smallest caches."""
    memory = MemoryTiers(range(len(inputs.topology.device.memory)), cached_rows)
    if not inputs.memory.slower_tiers:
        memory = MemoryTiers([0])
    elif inputs.memory.cache_bytes_per_worker is not None and len(memory.tiers) > 1:
        memory = tiers_behind_caches(inputs)
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
    topology = inputs.topology
    needed = sum(_table_bytes(inputs, table) for table in inputs.tables)
    return bool(needed <= 0.9 * CACHE_SHARE * topology.device.bytes * topology.world_size)


def _table_bytes(inputs: PlanInputs, table: TableSpec) -> float:
    """Rows and their optimizer state; of adaptive tables what their budget gives them, of dynamic ones
    also the map of their ids."""
    whole = table.weight_bytes + table.rows * state_bytes(inputs.workload.optimizer, table.dim)
    return float(whole) * inputs.held_share(table) + table.rows * inputs.map_bytes_per_row(table)
