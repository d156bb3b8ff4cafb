"""The same step on one worker, beside a plan for several: whoever does not need them should be told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megalith.cli.plan.inputs import PlanRequest
    from megalith.sharding.plan import ShardingPlan
    from megalith.sharding.planner.types import PlanInputs


def with_one_worker(
    made: ShardingPlan,
    request: PlanRequest,
    inputs: PlanInputs,
    algorithm: str,
    improve: bool,
    seconds: float | None,
) -> ShardingPlan:
    """The plan, with what its step would take on one worker where the tables fit its fastest memory."""
    from megalith.core.errors import PlanError
    from megalith.sharding.planner import Planner

    estimate = made.estimate
    if estimate is None or made.world_size == 1:
        return made
    alone = replace(request, world_size=1, workers_per_node=1, global_batch=inputs.workload.global_batch)
    own = alone.inputs()
    weights = sum(table.weight_bytes for table in own.tables) * own.adaptive_share
    if weights > own.topology.device.memory[0].bytes:
        # Not even without optimizer state: nothing to look for.
        return made
    try:
        single = Planner(alone.search(own, algorithm, improve, seconds)).plan(own).estimate
    except PlanError:
        return made
    if single is None or any(table.tier != single.first_tier for table in single.tables):
        return made
    return made.model_copy(update={"estimate": replace(estimate, one_worker_seconds=single.step_seconds)})
