"""Whether the tables of a run fit into its machines, asked by all ranks before any of them takes memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, PlanError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, too_many_rows
from megalith.core.units import format_bytes
from megalith.embeddings.memory import check_fits, memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.choose import (
    AdaptiveBytes,
    adaptive_bytes,
    is_adaptive,
    is_behind_cache,
    is_whole,
)
from megalith.embeddings.stores.dynamic.settings import inner_spec
from megalith.embeddings.stores.settings import TieredMemory
from megalith.hardware.free_memory import available_bytes
from megalith.sharding.plan import ShardingPlan

_SMALL = 64 << 20
"""Adaptive tables up to this size are not asked about."""


def check_memory(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    plan: ShardingPlan | None,
    ranks: Ranks,
    memory: TieredMemory | None = None,
    second_copy: bool = False,
    adaptive: AdaptivePolicy | None = None,
    lookups: Mapping[str, int | None] | None = None,
) -> AdaptiveBytes:
    """Refuses tables that do not fit, on all ranks alike. Ranks of one machine share its memory.

    Of tables behind a cache it is the cache that has to fit, of adaptive ones the most that they take on the
    way to their budget, if `lookups` of a step in each are given. Returns what adaptive tables take.
    """
    copies = 2 if second_copy else 1
    # A collective: no rank takes memory while another still measures what is free.
    available = ranks.from_each(available_bytes)
    size = 1 if plan is None else ranks_a_host(plan.world_size)
    chunked = [table for table in tables if is_adaptive(table)]
    # Of those on disk it is the cache that has to fit, and what is known of their chunks.
    in_memory = [table for table in chunked if table.store_spec.disk is None]
    on_disk = [table for table in chunked if table.store_spec.disk is not None]
    # Of a dynamic table it is the rows underneath.
    tables = [inner_spec(table) for table in tables]
    whole = [table for table in tables if is_whole(table)]
    optimizers = [optimizer] * len(whole)
    tiered = [table for table in tables if is_behind_cache(table)]
    if (tiered or on_disk) and memory is not None:
        rows = memory_of([*tiered, *on_disk], [optimizer] * (len(tiered) + len(on_disk))).total
        _check_cache(min(memory.dram * size, rows), available)
    budget = adaptive_bytes(chunked, optimizer, adaptive, lookups)
    if plan is None:
        for table in whole:
            if table.rows > MAX_DENSE_ROWS:
                raise ConfigError(too_many_rows(table.name, table.rows))
        part = memory_of(in_memory, [optimizer] * len(in_memory)).total / max(1, budget.dense)
        left = _beside_adaptive(budget, part, copies, available[0])
        check_fits(whole, optimizers, lambda: left, copies=copies)
        return budget
    total = max(1, memory_of(whole, optimizers).total)
    by_host = (host_bytes(some, optimizer, plan, size) for some in (whole, in_memory))
    for host, (needed, in_chunks) in enumerate(zip(*by_host, strict=True)):
        known = [free for free in available[host * size : (host + 1) * size] if free is not None]
        left = _beside_adaptive(budget, in_chunks / max(1, budget.dense), copies, min(known, default=None))
        check_fits(whole, optimizers, partial(_same, left), copies=copies, share=needed / total)
    return budget


def _same(available: int | None) -> int | None:
    return available


def _beside_adaptive(adaptive: AdaptiveBytes, part: float, copies: int, available: int | None) -> int | None:
    """What a machine has left beside its part of the adaptive tables, when these take the most."""
    if available is None:
        return None
    final, peak = (int(size * part * copies) for size in (adaptive.budget, adaptive.peak))
    if final > max(available, _SMALL):
        raise PlanError(
            f"Adaptive tables may take {format_bytes(final)} on one machine, with their copies for "
            f"background checkpoints, and {format_bytes(available)} of memory is available; raise "
            "adaptive.ratio, or lower adaptive.budget."
        )
    if peak > max(available, _SMALL):
        ratio = ceil(10 * adaptive.dense * part * copies / max(1, available)) / 10
        raise PlanError(
            f"Adaptive tables may take {format_bytes(peak)} on one machine before they are pruned to "
            f"{format_bytes(final)}, with their copies for background checkpoints, and "
            f"{format_bytes(available)} of memory is available; begin with less "
            f"(adaptive.begin_ratio={max(1.1, ratio):g})."
        )
    return max(0, available - peak)


def _check_cache(dram: int, available: Sequence[int | None]) -> None:
    known = [free for free in available if free is not None]
    if known and dram > min(known):
        raise PlanError(
            f"The caches of tiered tables on one machine may take {format_bytes(dram)} (memory.dram) and "
            f"{format_bytes(min(known))} of memory is available; give them less."
        )


def ranks_a_host(world_size: int) -> int:
    """Ranks that torchrun starts on a machine; all of them where it did not."""
    return max(1, min(int(os.environ.get("LOCAL_WORLD_SIZE", world_size)), world_size))


def host_bytes(
    tables: Sequence[TableSpec], optimizer: RowOptimizer, plan: ShardingPlan, size: int
) -> list[int]:
    """Bytes of rows and optimizer state on each machine of `size` ranks, under a plan."""
    specs = {table.name: table for table in tables}
    needed = [0] * -(-plan.world_size // size)
    for placement in plan.placements:
        if placement.table not in specs:
            continue
        for shard in placement.shards:
            part = specs[placement.table].model_copy(update={"rows": shard.num_rows, "dim": shard.dim})
            needed[shard.worker // size] += memory_of([part], [optimizer]).total
    return needed
