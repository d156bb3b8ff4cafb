"""`make_plan`: from tables and a cluster to the best plan found, and how far from the best it can be.

    plan = make_plan(tables, "zionex", global_batch=65536)
    plan.estimate.step_seconds, plan.estimate.gap

It is a composition of the stages of `types.py`: enumerate, estimate, bound, partition. `Planner` takes them
one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ExchangeConfig, ShardingPlan
from megalith.sharding.planner.bound.branch_and_bound import BranchAndBound
from megalith.sharding.planner.enumerate import OptionEnumerator
from megalith.sharding.planner.estimate.estimator import CostEstimator
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.memory import memory_attempts
from megalith.sharding.planner.partition.partitioner import SearchPartitioner
from megalith.sharding.planner.placements import estimate_of, placements_of
from megalith.sharding.planner.search import Clock, SearchSettings
from megalith.sharding.planner.shortage import shortage_error
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.types import (
    Bounder,
    Enumerator,
    Estimator,
    FoundPlacement,
    Partitioner,
    PlacementProblem,
    PlanInputs,
    Workload,
)
from megalith.sharding.runnable import runnable_here

_BOUND_SHARE, _TIERED_SHARE = 0.3, 0.4
"""Of the time given, what the lower bound may take; more where tables may lie on slower memory, as its prices
lead the search there."""


def make_plan(
    tables: Sequence[TableSpec],
    cluster: Cluster | str,
    *,
    global_batch: int,
    world_size: int | None = None,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer: str = "rowwise_adagrad",
    exchange: ExchangeConfig | None = None,
    search: SearchSettings | None = None,
) -> ShardingPlan:
    """The plan with the shortest predicted embedding part of a step; PlanError says what does not fit.

    `cluster` is a description or a name of the catalog, of which the first `world_size` workers are taken
    (all by default); `global_batch` counts the samples of a step on all of them. `statistics` say by table
    how many ids a sample looks up and how unevenly; tables without get the defaults.

    >>> import megalith as mg
    >>> tables = [mg.TableSpec(name="items", rows=500_000, dim=64, features=("item",))]
    >>> plan = mg.make_plan(tables, "zionex", global_batch=4096, world_size=8)
    >>> plan.placement("items").kind, plan.estimate.gap < 0.01
    ('column_wise', True)
    """
    workload = Workload(global_batch, optimizer, exchange or ExchangeConfig())
    inputs = plan_inputs(
        tables,
        catalog().cluster(cluster) if isinstance(cluster, str) else cluster,
        workload,
        world_size=world_size,
        statistics=statistics,
    )
    return Planner(search).plan(inputs)


class Planner:
    """The stages of the planner, one after the other; each can be replaced."""

    def __init__(
        self,
        search: SearchSettings | None = None,
        *,
        enumerator: Enumerator | None = None,
        estimator: Estimator | None = None,
        bounder: Bounder | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        self.search = search = search or SearchSettings()
        self.enumerator = enumerator or OptionEnumerator(search.min_dim)
        self.estimator = estimator or CostEstimator()
        self.bounder = bounder or BranchAndBound()
        self.partitioner = partitioner or SearchPartitioner(search.algorithm, search.improve)

    def plan(self, inputs: PlanInputs) -> ShardingPlan:
        """The best plan found for these inputs; PlanError says what does not fit."""
        watch, clock = Clock(), self.search.clock()
        for memory in memory_attempts(inputs, self.search.min_dim):
            problem = self.estimator.estimate(inputs, self.enumerator.enumerate(inputs, memory))
            found = self._place(problem, clock)
            if found is not None:
                break
        else:
            raise shortage_error(inputs, self.search.min_dim)
        placements = placements_of(inputs, problem, found)
        plan = ShardingPlan(
            world_size=inputs.topology.world_size,
            workers_per_node=inputs.topology.per_node,
            placements=placements,
            exchange=inputs.workload.exchange,
            runnable=runnable_here(placements, inputs.topology.device),
            estimate=estimate_of(inputs, problem, found, watch.now()),
        )
        plan.check(inputs.tables)
        return plan

    def _place(self, problem: PlacementProblem, clock: Clock) -> FoundPlacement | None:
        """None if nothing fits."""
        seconds = self.search.seconds
        tiers = any(option.tier for option in problem.options)
        share = _TIERED_SHARE if tiers else _BOUND_SHARE
        bound = self.bounder.lower_bound(problem, clock.after(share * seconds))
        return None if bound is None else self.partitioner.partition(problem, bound, clock, seconds)
