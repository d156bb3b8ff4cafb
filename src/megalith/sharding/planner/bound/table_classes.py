"""Tables that are alike, as one: models often have many of one size, and a program is as large as its kinds.

What a linear program says of equal tables it may say of each alike, so a class takes the shares of all its
tables together and every table of it an equal part of them.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.types import Flags, Floats, Ints, PlacementProblem


def alike_tables(problem: PlacementProblem) -> Ints:
    """Of each table: the first one whose options cost the same, but for the order of floating-point sums."""
    seen: dict[tuple[bytes, ...], int] = {}
    first = []
    costs = (problem.total.astype(np.float32), problem.peak.astype(np.float32))
    for table, (begin, end) in enumerate(problem.option_ranges()):
        arrays = (*costs, problem.width, problem.counts)
        key = tuple(array[begin:end].tobytes() for array in arrays)
        first.append(seen.setdefault(key, table))
    return np.array(first, dtype=np.int64)


class TableClasses:
    """Classes of tables that are alike and may take the same options."""

    def __init__(self, problem: PlacementProblem, alike: Ints, allowed: Flags) -> None:
        self._problem = problem
        keys = [
            (first, allowed[begin:end].tobytes())
            for first, (begin, end) in zip(alike.tolist(), problem.option_ranges(), strict=True)
        ]
        classes: dict[tuple[int, bytes], int] = {}
        self.number: Ints = np.array([classes.setdefault(key, len(classes)) for key in keys], dtype=np.int64)
        """The class of each table."""
        self.first: Ints = np.unique(self.number, return_index=True)[1]
        """The first table of each class, rising as the classes do."""
        counts = np.bincount(self.number)
        self.members: dict[int, int] = dict(zip(self.first.tolist(), counts.tolist(), strict=True))
        """How many tables each class has, by its first."""

    def spread(self, mixture: Floats) -> Floats:
        """Shares of the first tables' options, which add up to a class, as those of every table."""
        problem = self._problem
        first = self.first[self.number][problem.table]
        same = problem.first[first] + np.arange(len(problem.table)) - problem.first[problem.table]
        result: Floats = mixture[same] / np.array(list(self.members.values()))[self.number][problem.table]
        return result
