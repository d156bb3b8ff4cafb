"""What an order of operations takes by itself, where closed forms say little of it.

The zero-bubble family fixes its order for forward and backward passes that take equally long; with others its
devices wait for each other. Messages and collectives are free here, and operations keep their order whatever
they wait for, so that no step of the order is shorter.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.search.bounds.pipeline_times import PipelineTimes

ORDERED = ("zb-h1", "zb-h2", "zb-v")
_ROUNDING = 1 - 1e-6
_MOST_OPERATIONS = 50_000
"""Beyond so many an order is not followed: it would take longer than what it saves."""


@lru_cache(maxsize=4096)
def order_seconds(times: PipelineTimes, schedule: str, devices: int, micro_batches: int) -> float:
    """Seconds of the order with these stages; 0 where it is not known."""
    stages = len(times.forward_sums) - 1
    if schedule not in ORDERED or 3 * stages * micro_batches > _MOST_OPERATIONS:
        return 0.0
    costs = StepCosts(_each(times.forward_sums), _each(times.backward_sums), _each(times.weight_sums))
    order = build_schedule(schedule, devices, micro_batches)
    return _ROUNDING * simulate(order, costs).step_seconds


def _each(sums: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(max(0.0, after - before) for before, after in pairwise(sums))
