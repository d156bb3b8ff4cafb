"""Kinds that need a collective of their own: every plan either pays its latency or does without them."""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.loads import extra_latency
from megalith.sharding.planner.types import Flags, PlacementProblem

OPTIONAL_KINDS = (frozenset({"data_parallel"}), frozenset({"table_row", "grid"}))
"""Kinds that need a collective of their own, which costs latency as soon as one table takes them."""


def kind_sets(problem: PlacementProblem) -> list[tuple[Flags, float]]:
    """Options with and without the kinds that need collectives of their own, and the latency of each set.

    A plan that has such a kind pays; so every plan belongs to one set and pays at least its latency.
    """
    kinds = np.array([option.kind for option in problem.options])
    sets: list[tuple[Flags, float]] = []
    present = [group for group in OPTIONAL_KINDS if np.isin(kinds, list(group)).any()]
    for number in range(2 ** len(present)):
        used = [group for position, group in enumerate(present) if number >> position & 1]
        banned = [kind for group in present if group not in used for kind in group]
        usable = ~np.isin(kinds, banned)
        latency = extra_latency(problem.topology, {kind for group in used for kind in group})
        sets.append((np.asarray(usable), latency))
    return sets
