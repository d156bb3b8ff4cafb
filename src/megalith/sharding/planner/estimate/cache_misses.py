"""How many rows of a batch caches miss: the one place where the planner asks for hit rates."""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.types import Floats


def missed_rows(
    statistics: TableStatistics, first: Floats, rows: Floats, cached: Floats, ids: float
) -> Floats:
    """Distinct rows of a batch of `ids` that miss, of shards with so many rows from `first` on, each behind a
    cache for the share `cached` of its rows.

    A cache is taken to hold the rows of its shard that are looked up most.
    """
    if statistics.hot_first:
        kept = first + cached * rows
        before = statistics.distinct_before(np.stack((kept, first + rows)), ids)
        missed: Floats = before[1] - before[0]
        return missed
    total = statistics.rows[-1]
    held = statistics.distinct_by_rank(np.append(cached * total, total), ids)
    return (held[-1] - held[:-1]) * rows / total
