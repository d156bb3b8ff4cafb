"""The plan of a run: read from the recipe's file, or made for the ranks that there are, at every start.

A trained model is evaluated under the plan it was trained with if as many ranks run, else under a new one.
`recipe_inputs` is what `megalith plan RECIPE` plans with too, so that both make the same plan.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from megalith.comm.ranks import Ranks
from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.data.dataset import Dataset, DatasetSchema
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.choose import adaptive_bytes, choose_adaptive
from megalith.hardware.cluster import Cluster
from megalith.models.base import ModelInputs
from megalith.models.registry import build_model
from megalith.sharding.plan import ExchangeConfig, ShardingPlan, read_plan
from megalith.sharding.planner.inputs import dataset_statistics, local_cluster, plan_inputs
from megalith.sharding.planner.search import run_search
from megalith.sharding.planner.types import MemoryPolicy, PlanInputs, Workload
from megalith.sharding.runnable import check_runnable
from megalith.train.recipe import Recipe


def plan_for_training(recipe: Recipe, dataset: Dataset, ranks: Ranks) -> ShardingPlan | None:
    """The plan of a run that trains, the same on every rank; None in one process, which holds all tables."""
    if ranks.world_size == 1:
        return None
    return ranks.from_first(lambda: _training_plan(recipe, dataset, ranks.world_size))


def plan_for_eval(recipe: Recipe, dataset: Dataset, ranks: Ranks, used: Path) -> ShardingPlan | None:
    """The plan under which a trained model is scored: the one in `used` if it is for as many ranks."""
    if ranks.world_size == 1:
        return None
    return ranks.from_first(lambda: _eval_plan(recipe, dataset, ranks.world_size, used))


def recipe_inputs(
    recipe: Recipe,
    dataset: Dataset,
    cluster: Cluster,
    *,
    world_size: int | None = None,
    workers_per_node: int | None = None,
    global_batch: int | None = None,
    memory: MemoryPolicy | None = None,
) -> PlanInputs:
    """Everything that the plan of a recipe depends on; `global_batch` replaces the recipe's, `memory` says
    which tiers tables may take."""
    tables, adaptive = _placed(recipe, dataset)
    workload = Workload(
        global_batch=global_batch or recipe.data.batch_size,
        optimizer=recipe.embeddings.optimizer.kind,
        exchange=recipe.sharding.exchange or ExchangeConfig(),
        pipelined=recipe.train.pipeline > 0,
    )
    return plan_inputs(
        tables,
        cluster,
        workload,
        world_size=world_size,
        workers_per_node=workers_per_node,
        statistics=dataset_statistics(tables, dataset.folder, dataset.schema.categorical),
        memory=memory,
        adaptive_share=adaptive_bytes(tables, recipe.embeddings.optimizer, adaptive).share,
    )


def dense_mflops(recipe: Recipe, schema: DatasetSchema) -> float:
    """MFLOPs of a sample in the layers, forward: two for each weight of the dense part."""
    with torch.device("meta"):
        dense = build_model(recipe.model, ModelInputs(len(schema.numeric), schema.categorical))
    return 2e-6 * sum(parameter.numel() for parameter in dense.parameters())


def runtime_memory(recipe: Recipe) -> MemoryPolicy:
    """Where training keeps rows: what does not fit in memory is refused, unless the recipe gives a disk."""
    return MemoryPolicy.of_runtime(None if recipe.memory is None else recipe.memory.dram)


def _tables(recipe: Recipe, dataset: Dataset) -> list[TableSpec]:
    return _placed(recipe, dataset)[0]


def _placed(recipe: Recipe, dataset: Dataset) -> tuple[list[TableSpec], AdaptivePolicy | None]:
    """The tables with the stores that the recipe gives them, and the budget of those that are adaptive."""
    tables = recipe.embeddings.with_stores(recipe.model.tables(dataset.schema.categorical))
    if recipe.adaptive is None:
        return tables, None
    return choose_adaptive(tables, [recipe.embeddings.optimizer] * len(tables), recipe.adaptive)


def _eval_plan(recipe: Recipe, dataset: Dataset, world_size: int, used: Path) -> ShardingPlan:
    if used.exists():
        plan = read_plan(used)
        if plan.world_size == world_size:
            check_runnable(plan, str(used))
            plan.check(_tables(recipe, dataset))
            return plan
    return _checked(_automatic_plan(recipe, dataset, world_size), recipe, dataset)


def _training_plan(recipe: Recipe, dataset: Dataset, world_size: int) -> ShardingPlan:
    config = recipe.sharding
    if isinstance(config.plan, Path):
        plan = read_plan(config.plan)
        if plan.world_size != world_size:
            raise PlanError(
                f"{config.plan} is for {plan.world_size} workers and {world_size} ranks run; regenerate "
                f"it with `megalith plan --world-size {world_size}`, or set sharding.plan=auto."
            )
        check_runnable(plan, str(config.plan))
    else:
        plan = _automatic_plan(recipe, dataset, world_size)
    return _checked(plan, recipe, dataset)


def _checked(plan: ShardingPlan, recipe: Recipe, dataset: Dataset) -> ShardingPlan:
    if recipe.sharding.exchange is not None:
        plan = plan.model_copy(update={"exchange": recipe.sharding.exchange})
    plan.check(_tables(recipe, dataset))
    return plan


def _automatic_plan(recipe: Recipe, dataset: Dataset, world_size: int) -> ShardingPlan:
    # Brings numpy's and HiGHS's solvers along, which a run with a plan of its own does not need.
    from megalith.sharding.planner.planner import Planner

    ranks_a_host = min(int(os.environ.get("LOCAL_WORLD_SIZE", world_size)), world_size)
    inputs = recipe_inputs(
        recipe,
        dataset,
        local_cluster(world_size, ranks_a_host),
        world_size=world_size,
        workers_per_node=ranks_a_host,
        memory=runtime_memory(recipe),
    )
    return Planner(run_search(len(inputs.tables), world_size)).plan(inputs)
