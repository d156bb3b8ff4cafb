"""A plan as tables for people: where each table goes, what every worker does, and the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from megalith.cli.output import print_table, say

if TYPE_CHECKING:
    from megalith.sharding.plan import ShardingPlan
    from megalith.sharding.plan_estimate import PlanEstimate, TableEstimate

SHOWN_WORKERS = 16
SHOWN_TABLES = 40


def show_plan(plan: ShardingPlan, estimate: PlanEstimate, global_batch: int) -> None:
    """Prints a plan that was just made."""
    from megalith.core.units import format_bytes, format_count, format_duration, format_parts
    from megalith.sharding.plan_estimate import one_worker_words

    tables = sorted(estimate.tables, key=lambda table: -table.seconds)
    rows = [
        [
            table.table,
            placement_words(plan, table),
            format_count(table.rows),
            table.dim,
            f"{table.lookups:.3g}",
            format_bytes(table.bytes) + ("" if table.tier == estimate.first_tier else f" {table.tier}"),
            format_duration(table.seconds),
        ]
        for table in tables[:SHOWN_TABLES]
    ]
    more = f", the {SHOWN_TABLES} costliest of {len(tables):,}" if len(tables) > SHOWN_TABLES else ""
    print_table(
        f"Tables{more}", ["table", "placement", "rows", "dim", "ids", "bytes", "seconds in all"], rows
    )
    print_table(*_load_table(estimate))
    step, parts = format_parts(estimate.step_parts())
    consists = ", ".join(f"{name} {seconds}" for name, seconds in parts.items())
    say(
        f"Embedding part of a step of {global_batch:,} samples on {plan.world_size:,} "
        f"{estimate.device}: {step} ({consists}), bound by "
        f"{estimate.bound_by}; at most {estimate.gap:.2%} above the best possible, "
        f"imbalance {estimate.imbalance:.1%}; found by {estimate.algorithm} in "
        f"{estimate.planning_seconds:.1f} s."
    )
    if estimate.one_worker_suffices:
        say(one_worker_words(estimate, plan.world_size))
    say(f"runnable: {plan.runnable}")


def placement_words(plan: ShardingPlan, table: TableEstimate) -> str:
    """Such as `column_wise in 3 on 0, 5, 7`."""
    workers = plan.placement(table.table).workers
    where = ", ".join(map(str, workers)) if len(workers) <= 4 else f"{len(workers)} workers"
    if len(workers) == plan.world_size and plan.world_size > 1:
        where = "all"
    parts = f" in {table.columns}" if table.columns > 1 else ""
    return f"{table.kind}{parts} on {where}"


def _load_table(estimate: PlanEstimate) -> tuple[str, list[str], list[list[str]]]:
    """Worker by worker, or the spread over all when they are many."""
    from megalith.core.units import format_bytes, format_duration

    workers, tiers = estimate.workers, estimate.used_tiers()
    columns = ["", "compute", "communication", *tiers]

    def spread(name: str, pick: Callable[[Sequence[float]], float]) -> list[str]:
        return [
            name,
            format_duration(pick([worker.compute_seconds for worker in workers])),
            format_duration(pick([worker.communication_seconds for worker in workers])),
            *(format_bytes(pick([worker.memory_bytes[tier] for worker in workers])) for tier in tiers),
        ]

    if len(workers) > SHOWN_WORKERS:
        rows = [spread("least", min), spread("mean", mean), spread("most", max)]
        return f"Load of {len(workers):,} workers", columns, rows
    rows = [
        [
            str(worker.worker),
            format_duration(worker.compute_seconds),
            format_duration(worker.communication_seconds),
            *(format_bytes(worker.memory_bytes[tier]) for tier in tiers),
        ]
        for worker in workers
    ]
    return "Load by worker", ["worker", *columns[1:]], rows
