"""Where each table goes: enumerate, estimate, bound, partition, and prove how far from the best that is.

types.py            the stages as abstract types, and the values that pass between them
inputs.py           everything a plan depends on: tables, statistics, topology, workload
table_file.py       tables described in a YAML file instead of a recipe
statistics.py       lookups of a table: ids of a sample, hot rows
topology.py         the workers: their devices, nodes, and what a byte between them costs
enumerate.py        every option to shard a table
estimate/           what each option costs its workers: seconds of four phases, bytes of each tier
loads.py            what the workers of a solution do, and how long a step takes
bound/              what no plan can beat
partition/          which option each table takes and which workers: greedy, local search, exact, ...
memory.py           which memory tiers a plan needs
shortage.py         what does not fit, and the smallest change that would
search.py           how a search runs, and when it ends: by the clock, or after counted steps
placements.py       from a solution to a plan's rectangles and its estimate
planner.py          make_plan: the stages composed
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Planner": "planner",
    "SearchSettings": "search",
    "TableStatistics": "statistics",
    "default_statistics": "statistics",
    "from_batches": "statistics",
    "from_dataset": "statistics",
    "make_plan": "planner",
}
__all__ = [
    "Planner",
    "SearchSettings",
    "TableStatistics",
    "default_statistics",
    "from_batches",
    "from_dataset",
    "make_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
