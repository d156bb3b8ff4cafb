"""Where each table goes: enumerate, estimate, partition, and prove how far from the best that is.

statistics.py       traffic of a table: lookups a sample, hot rows
topology.py         the workers: their devices, nodes, and what a byte between them costs
options.py          every way to cut a table
estimate.py         what each piece costs its worker: seconds of four phases, bytes of each tier
problem.py          all of it as arrays; what a plan costs
greedy.py, karmarkar_karp.py, mip.py, local_search.py
                    ways to a plan
bound.py            what no plan can beat
advice.py           what does not fit, and the smallest change that would
clock.py            when a search ends: by the clock, or after counted steps
planner.py          make_plan: the best of them, as a ShardingPlan
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "TableStatistics": "statistics",
    "default_statistics": "statistics",
    "from_batches": "statistics",
    "from_dataset": "statistics",
    "make_plan": "planner",
}
__all__ = ["TableStatistics", "default_statistics", "from_batches", "from_dataset", "make_plan"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
