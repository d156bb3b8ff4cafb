"""The plan of a run: read from the recipe's file, or made for the ranks that there are, at every start.

A trained model is evaluated under the plan it was trained with if as many ranks run, else under a new one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from megalith.comm.ranks import Ranks
from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.data.dataset import Dataset
from megalith.data.stats import STATISTICS_FILE, read_statistics
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.machine import this_machine
from megalith.sharding.plan import ShardingPlan, read_plan
from megalith.train.recipe import Recipe

# A run starts, and starts again after a lost rank, without a long wait for a slightly better plan.
_SECONDS = 3.0


def plan_for_training(recipe: Recipe, dataset: Dataset, ranks: Ranks) -> ShardingPlan | None:
    """The plan of a run that trains, the same on every rank; None in one process, which holds all tables."""
    if ranks.world_size == 1:
        return None
    tables = recipe.model.tables(dataset.schema.categorical)
    return ranks.from_first(lambda: _plan(recipe, tables, dataset, ranks.world_size))


def plan_for_eval(recipe: Recipe, dataset: Dataset, ranks: Ranks, used: Path) -> ShardingPlan | None:
    """The plan under which a trained model is scored: the one in `used` if it is for as many ranks."""
    if ranks.world_size == 1:
        return None
    tables = recipe.model.tables(dataset.schema.categorical)
    return ranks.from_first(lambda: _known_plan(recipe, tables, dataset, ranks.world_size, used))


def _known_plan(
    recipe: Recipe, tables: list[TableSpec], dataset: Dataset, world_size: int, used: Path
) -> ShardingPlan:
    if used.exists():
        plan = read_plan(used)
        if plan.world_size == world_size:
            plan.check(tables)
            return plan
    return _checked(_automatic(recipe, tables, dataset, world_size), recipe, tables)


def _plan(recipe: Recipe, tables: list[TableSpec], dataset: Dataset, world_size: int) -> ShardingPlan:
    config = recipe.sharding
    if isinstance(config.plan, Path):
        plan = read_plan(config.plan)
        if plan.world_size != world_size:
            raise PlanError(
                f"{config.plan} is for {plan.world_size} workers and {world_size} ranks run; regenerate "
                f"it with `megalith plan --world-size {world_size}`, or set sharding.plan=auto."
            )
    else:
        plan = _automatic(recipe, tables, dataset, world_size)
    return _checked(plan, recipe, tables)


def _checked(plan: ShardingPlan, recipe: Recipe, tables: list[TableSpec]) -> ShardingPlan:
    if recipe.sharding.exchange is not None:
        plan = plan.model_copy(update={"exchange": recipe.sharding.exchange})
    plan.check(tables)
    return plan


def _automatic(recipe: Recipe, tables: list[TableSpec], dataset: Dataset, world_size: int) -> ShardingPlan:
    from megalith.sharding.planner import from_dataset, make_plan

    known = (dataset.folder / STATISTICS_FILE).exists()
    ranks_a_host = min(int(os.environ.get("LOCAL_WORLD_SIZE", world_size)), world_size)
    return make_plan(
        tables,
        hosts_like_this(world_size, ranks_a_host),
        world_size=world_size,
        workers_per_node=ranks_a_host,
        global_batch=recipe.data.batch_size,
        statistics=from_dataset(tables, read_statistics(dataset.folder)) if known else None,
        optimizer_kind=recipe.embeddings.optimizer.kind,
        exchange=recipe.sharding.exchange,
        pipelined=recipe.sharding.pipeline,
        seconds=_SECONDS,
    )


def hosts_like_this(world_size: int, ranks_a_host: int) -> Cluster:
    """Machines like this one, as many as torchrun has started ranks on."""
    rack = catalog().cluster("cpu-rack")
    memory = rack.device.memory
    measured = this_machine().memory_bytes
    if measured is not None:
        memory = (replace(memory[0], bytes=measured), *memory[1:])
    levels = (replace(rack.levels[0], count=-(-world_size // ranks_a_host)), *rack.levels[1:])
    return replace(rack, name="these hosts", device=replace(rack.device, memory=memory), levels=levels)
