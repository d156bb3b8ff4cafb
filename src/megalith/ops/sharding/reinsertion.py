"""Tables taken out of a sharding plan and put in again, a few at a time.

Arrays describe the plan as the planner has it (`sharding/planner/types.py`); torch takes no part. The twin is
in `reinsertion_twin.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class InsertionProblem:
    """What tables may take, and what that costs. Loads are seconds of phases, then bytes of tiers."""

    first: Ints
    """Candidates of table t: [first[t], first[t + 1])."""
    candidates: Ints
    """Options, of each table by rising price."""
    width: Ints
    """Of each option: workers that a block spans."""
    counts: Ints
    """[options, 2]: blocks of both variants, the larger first."""
    starts: Ints
    """[options, 2]: where the loads of a variant begin in `shards`."""
    shards: Floats
    price: Floats
    """Of each option, finite and at least 0."""
    size: Floats
    """Of each option: how hard it is to place; the largest come first."""
    scale: Floats
    """One over the limit of each phase, and of each tier if memory is to be filled evenly."""
    value: Floats
    """Of the same: what a worker costs that is beyond its limit."""
    capacity: Floats
    """Bytes of each tier."""
    level: float = 1.0
    """Share of its limit from which a phase costs something."""
    doublings: int = 1
    """The power of what is beyond: 2 to this."""


@dataclass(frozen=True)
class InsertionPlan:
    """A plan that is changed in place."""

    choice: Ints
    """The option of each table; -1 for one that is not in the plan."""
    group_first: Ints
    """Groups of table t begin at group_first[t], with room for those of any candidate."""
    groups: Ints
    loads: Floats
    """[workers, phases + tiers]"""


@dataclass(frozen=True)
class InsertionSearch:
    """How to look for a better plan."""

    rounds: int = 0
    seed: int = 0
    most_workers: int = 3
    """Workers besides the one that is relieved whose tables are taken out, 1 to this."""
    most_tables: int = 2
    """Tables of each, 1 to this."""
    window: int = 0
    """Workers that a table is tried on, drawn anew for each option; 0 for all."""
    slack: float = 0.0
    """A round stays that costs more by up to this, drawn evenly."""
    exchanges: int = 0
    """Before each round, so many times a block drawn at random is moved or swapped with another, or its
    table cut another way."""
    exchange_slack: float = 0.0
    """These stay where they cost more by up to this, drawn evenly."""


def reinsert_tables(
    problem: InsertionProblem, plan: InsertionPlan, inserted: Ints, search: InsertionSearch
) -> tuple[int, int]:
    """Puts `inserted` in, in their order, then takes some out and puts them in again.

    Returns how many of `inserted` found room before the first that did not, and how many rounds changed the
    plan; there are none where a table found no room.
    """
    tiers = len(problem.capacity)
    settings = np.array(
        [
            *(len(plan.loads), plan.loads.shape[1] - tiers, tiers, len(problem.scale)),
            *(len(plan.choice), len(inserted), search.rounds, search.seed),
            *(search.most_workers, search.most_tables, search.window),
            *(problem.doublings, search.exchanges),
        ],
        dtype=np.int64,
    )
    level_and_slack, found = (
        np.array([problem.level, search.slack, search.exchange_slack]),
        np.zeros(2, np.int64),
    )
    read = (
        *(settings, problem.first, problem.candidates, problem.width, problem.counts, problem.starts),
        *(problem.shards, problem.price, problem.size, problem.scale, problem.value, problem.capacity),
        *(level_and_slack, inserted, plan.choice, plan.group_first, plan.groups, plan.loads, found),
    )
    assert all(array.flags.c_contiguous and array.dtype.itemsize == 8 for array in read)
    native.library().mg_reinsert_tables(*(array.ctypes.data for array in read))
    return int(found[0]), int(found[1])
