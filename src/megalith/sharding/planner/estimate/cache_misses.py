"""How many rows of a batch a cache misses: the one place where the planner asks for a hit rate."""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.statistics import TableStatistics


def missed_share(statistics: TableStatistics, cached: float, ids: float) -> float:
    """Share of the distinct rows of a batch of `ids` that a cache of the share `cached` of the rows misses.

    The cache is taken to hold the rows that are looked up most.
    """
    rows = statistics.rows[-1]
    distinct = statistics.distinct_by_rank(np.array([cached * rows, rows]), ids)
    return 1 - float(distinct[0] / distinct[1]) if distinct[1] else 0.0
