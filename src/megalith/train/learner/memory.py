"""Whether the tables of a run fit into its machines, asked by all ranks before any of them takes memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, PlanError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, too_many_rows
from megalith.core.units import format_bytes
from megalith.embeddings.memory import check_fits, memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.choose import is_behind_cache, is_whole
from megalith.embeddings.stores.settings import TieredMemory
from megalith.hardware.free_memory import available_bytes
from megalith.sharding.plan import ShardingPlan


def check_memory(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    plan: ShardingPlan | None,
    ranks: Ranks,
    memory: TieredMemory | None = None,
    second_copy: bool = False,
) -> None:
    """Refuses tables that do not fit, on all ranks alike. Ranks of one machine share its memory.

    Of tables behind a cache it is the cache that has to fit. Adaptive ones take memory as rows begin.
    """
    copies = 2 if second_copy else 1
    # A collective: no rank takes memory while another still measures what is free.
    available = ranks.from_each(available_bytes)
    size = 1 if plan is None else ranks_a_host(plan.world_size)
    whole = [table for table in tables if is_whole(table)]
    optimizers = [optimizer] * len(whole)
    tiered = [table for table in tables if is_behind_cache(table)]
    if tiered and memory is not None:
        rows = memory_of(tiered, [optimizer] * len(tiered)).total
        _check_cache(min(memory.dram * size, rows), available)
    if plan is None:
        for table in whole:
            if table.rows > MAX_DENSE_ROWS:
                raise ConfigError(too_many_rows(table.name, table.rows))
        check_fits(whole, optimizers, lambda: available[0], copies=copies)
        return
    total = max(1, memory_of(whole, optimizers).total)
    for host, needed in enumerate(host_bytes(whole, optimizer, plan, size)):
        known = [free for free in available[host * size : (host + 1) * size] if free is not None]
        check_fits(whole, optimizers, partial(min, known, default=None), copies=copies, share=needed / total)


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
