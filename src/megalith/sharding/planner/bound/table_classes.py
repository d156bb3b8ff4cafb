"""Tables that are alike, as one: models often have many of one size, and a program is as large as its kinds.

What a linear program says of equal tables it may say of each alike, so a class takes the shares of all its
tables together and every table of it an equal part of them.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.types import NUM_PHASES, Flags, Floats, Ints, PlacementProblem

_ROUNDING = 1e-9


def alike_tables(problem: PlacementProblem) -> Ints:
    """Of each table: the first one whose options cost the same, but for the order of floating-point sums."""
    seen: dict[tuple[bytes, ...], list[int]] = {}
    ranges, first = problem.option_ranges(), []
    for table, (begin, end) in enumerate(ranges):
        # The first option is the simplest: it has no sums that could differ.
        key = (problem.total[begin].tobytes(), problem.width[begin:end].tobytes())
        others = seen.setdefault((*key, problem.counts[begin:end].tobytes()), [])
        alike = next((other for other in others if _same_costs(problem, ranges[other], (begin, end))), table)
        if alike == table:
            others.append(table)
        first.append(alike)
    return np.array(first, dtype=np.int64)


def _same_costs(problem: PlacementProblem, one: tuple[int, int], other: tuple[int, int]) -> bool:
    return all(
        np.allclose(costs[slice(*one)], costs[slice(*other)], rtol=_ROUNDING, atol=0.0)
        for costs in (problem.total, problem.peak)
    )


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


class KindOptions:
    """The options of one table of each kind, for what is the same for all tables of it."""

    def __init__(self, problem: PlacementProblem, alike: Ints) -> None:
        """`alike` names the first table of each one's kind."""
        kinds = np.unique(alike)
        self.num_kinds = len(kinds)
        self.options: Ints = np.concatenate([np.array(problem.options_of(table)) for table in kinds.tolist()])
        place = np.zeros(len(problem.table), dtype=np.int64)
        place[self.options] = np.arange(len(self.options))
        same = problem.first[alike][problem.table] + np.arange(len(place)) - problem.first[problem.table]
        self.place: Ints = place[same]
        """Of every option of the problem: its position among these."""
        self.width: Ints = problem.width[self.options]
        self.counts: Ints = problem.counts[self.options]
        lengths = np.repeat(self.width, 2)
        begins = np.cumsum(lengths) - lengths
        member = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
        self.shards: Floats = problem.shards[
            np.repeat(problem.starts[self.options].ravel(), lengths) + member
        ]
        """Loads of their shards, one variant after the other; seconds are those while peers wait."""
        self.shards[:, :NUM_PHASES] *= problem.topology.idle_peer_factor
        self.starts: Ints = begins.reshape(-1, 2)
        """[options, 2]: where the shards of each variant begin."""

    def mixed(self, mixture: Floats) -> Floats:
        """Shares of all tables' options, added up for these."""
        return np.asarray(np.bincount(self.place, mixture, len(self.options)), dtype=np.float64)
