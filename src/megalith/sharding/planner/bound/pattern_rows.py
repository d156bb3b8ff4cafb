"""Rows of the bound that know what fits on a worker together: bytes of all its memories, and seconds.

The rows of `packing_rows.py` look at one memory at a time. But a shard that fills the first memory has no
room beside one that fills the second and needs a cache in the first. So give some shards, the items, values
such that no set of items that fits on a worker is worth more than 1; a set is a pattern. Any other shard is
worth what the best pattern inside it is: where shards fit on a worker together, so do the patterns inside
them. So the shards of a plan are worth at most one for each worker, which is a row of the linear program.

The items are the shards of a mixture, and their values those that the mixture breaks the row by most with:
the duals of the program that packs it into as few workers as possible, whose columns are patterns (Gilmore
and Gomory, 1961). This is for problems with few kinds of tables; with many there are too many patterns.
"""

from __future__ import annotations

from typing import NamedTuple

import highspy
import numpy as np

from megalith.sharding.planner.bound.table_classes import KindOptions
from megalith.sharding.planner.types import NUM_PHASES, Floats, PlacementProblem

MOST_KINDS = 8
"""Kinds of tables up to which patterns are looked at."""
_ROOM, _INSIDE = 1 + 1e-6, 1 + 1e-7
"""How much more than a worker has a pattern may take, and than a shard has one inside it: plans may exceed
memory by rounding, and shards of tables that are alike differ by it."""
_ITEMS, _LEAST = 14, 0.04
"""Items at most, and what an item takes at least of some memory or phase."""
_PATTERNS, _INNER = 20_000, 400
"""Patterns of a worker at most, and inside shards: those of fewest items."""
_PRESENT = 1e-4
"""Tables that take an option, for its shards to be items."""
_BROKEN = 1e-3
"""By how much of its limit a row is broken at least."""


class PatternRow(NamedTuple):
    """One row: columns of the shards' loads, what a worker has of each, and the items with their values."""

    columns: tuple[int, ...]
    capacities: tuple[float, ...]
    sizes: tuple[tuple[float, ...], ...]
    """Of each item: shares of what a worker has."""
    values: tuple[float, ...]

    def holds(self, rooms: Floats) -> bool:
        """Whether it is true of plans whose workers have so much."""
        return all(self.capacities[k] >= rooms[column] for k, column in enumerate(self.columns))


class PatternRows:
    """Values of a problem's options, kept for rows that were asked for before."""

    def __init__(self, problem: PlacementProblem, kinds: KindOptions) -> None:
        self._problem, self._kinds = problem, kinds
        self._known: dict[PatternRow, Floats] = {}
        self.few = kinds.num_kinds <= MOST_KINDS and any(option.tier for option in problem.options)
        if self.few:
            # Most shards of a block are equal.
            self._shards, shard = np.unique(kinds.shards, axis=0, return_inverse=True)
            width = np.repeat(kinds.width, 2)
            self._owner = np.repeat(np.arange(len(width)) // 2, width)
            self._times = np.repeat(kinds.counts.ravel(), width).astype(np.float64)
            self._shard = shard.ravel()

    def counts(self, row: PatternRow) -> Floats:
        """Of each option of one table of each kind: what its shards are worth."""
        kinds = self._kinds
        if row not in self._known:
            shares = self._shards[:, row.columns] / np.array(row.capacities)
            worth = worth_inside(shares, np.array(row.sizes), np.array(row.values))
            weighted = self._times * worth[self._shard]
            self._known[row] = np.asarray(
                np.bincount(self._owner, weighted, len(kinds.options)), dtype=np.float64
            )
        return self._known[row]

    @property
    def limit(self) -> float:
        """What the shards of a plan are worth at most."""
        return float(self._problem.world_size)

    def violated(self, mixture: Floats, phase_caps: Floats) -> list[PatternRow]:
        """Rows that a mixture of options breaks."""
        if not self.few:
            return []
        problem, shares = self._problem, self._kinds.mixed(mixture)
        held = shares @ problem.total[self._kinds.options] / problem.world_size
        rooms = np.array([*phase_caps, *problem.capacity])
        used = [int(column) for column in np.flatnonzero(np.isfinite(rooms) & (held > 0.25 * rooms))]
        tiers = tuple(column for column in used if column >= NUM_PHASES)
        found = []
        for columns in dict.fromkeys((tiers, tuple(used))):
            row = self._most_broken(shares, columns, rooms) if columns else None
            if row is not None:
                found.append(row)
        return found

    def _most_broken(self, shares: Floats, columns: tuple[int, ...], rooms: Floats) -> PatternRow | None:
        sizes, demand = self._items(shares, columns, rooms)
        if not len(sizes):
            return None
        patterns, items = patterns_of(sizes, _PATTERNS)
        values = best_values(patterns[:, :items], sizes[:items], demand[:items])
        if float(values @ demand[:items]) <= self.limit * (1 + _BROKEN):
            return None
        kept = np.flatnonzero(values > 1e-6)
        return PatternRow(
            columns,
            tuple(rooms[list(columns)].tolist()),
            tuple(tuple(size) for size in sizes[kept].tolist()),
            tuple(values[kept].tolist()),
        )

    def _items(self, shares: Floats, columns: tuple[int, ...], rooms: Floats) -> tuple[Floats, Floats]:
        """Sizes of the shards of a mixture and how many there are of each, the largest first."""
        kinds, found = self._kinds, []
        limits = rooms[list(columns)]
        for number in np.flatnonzero(shares > _PRESENT).tolist():
            for variant in np.flatnonzero(kinds.counts[number]).tolist():
                begin, width = int(kinds.starts[number, variant]), int(kinds.width[number])
                amount = shares[number] * float(kinds.counts[number, variant])
                parts = kinds.shards[begin : begin + width, columns] / limits
                # Parts of rows differ: what all of them take.
                found.append((parts.min(axis=0), amount * width))
        found = [item for item in found if item[0].max() >= _LEAST]
        found.sort(key=lambda item: -float(item[0].max()))
        found = found[:_ITEMS]
        sizes = np.array([size for size, _ in found]).reshape(len(found), len(columns))
        return sizes, np.array([amount for _, amount in found])


def worth_inside(shares: Floats, sizes: Floats, values: Floats) -> Floats:
    """Of shards that take these shares of what a worker has: what the best pattern inside each is worth."""
    worth: Floats = np.zeros(len(shares))
    for pattern in _smallest_patterns(sizes):
        inside = (shares * _INSIDE >= pattern @ sizes).all(axis=1)
        np.maximum(worth, float(pattern @ values), out=worth, where=inside)
    return worth


def patterns_of(sizes: Floats, most: int) -> tuple[Floats, int]:
    """Sets of items that fit on a worker, by how many of each, the empty one first; and the first items that
    they are all of: as many as have so few sets."""
    counts, taken = np.zeros((1, len(sizes))), np.zeros((1, sizes.shape[1]))
    for number, size in enumerate(sizes):
        more, more_taken = [counts], [taken]
        while len(more[-1]):
            fitting = (more_taken[-1] + size <= _ROOM).all(axis=1)
            added = more[-1][fitting].copy()
            added[:, number] += 1
            more.append(added)
            more_taken.append(more_taken[-1][fitting] + size)
            if sum(map(len, more)) > most:
                return counts, number
        counts, taken = np.concatenate(more), np.concatenate(more_taken)
    return counts, len(sizes)


def _smallest_patterns(sizes: Floats) -> Floats:
    """Some patterns, those of fewest items."""
    counts, taken, last = np.eye(len(sizes)), sizes, np.arange(len(sizes))
    found = [counts]
    while len(counts) and sum(map(len, found)) < _INNER:
        larger = []
        for item, size in enumerate(sizes):
            fitting = np.flatnonzero((last <= item) & (taken + size <= _ROOM).all(axis=1))
            added = counts[fitting].copy()
            added[:, item] += 1
            larger.append((added, taken[fitting] + size, np.full(len(fitting), item)))
        counts, taken, last = (np.concatenate(part) for part in zip(*larger, strict=True))
        found.append(counts)
    return np.concatenate(found)[:_INNER]


def _maximal(patterns: Floats, sizes: Floats) -> Floats:
    """Patterns that no item can be added to."""
    taken = patterns @ sizes
    open_to_more = np.zeros(len(patterns), dtype=bool)
    for size in sizes:
        open_to_more |= (taken + size <= _ROOM).all(axis=1)
    return patterns[~open_to_more]


def best_values(patterns: Floats, sizes: Floats, demand: Floats) -> Floats:
    """Values of items, at most 1 for each pattern, that are most for so many of each item."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    model = highspy.HighsLp()
    columns, rows = _maximal(patterns, sizes), len(demand)
    model.num_col_, model.num_row_ = len(columns), rows
    model.col_cost_, model.col_lower_ = np.ones(len(columns)), np.zeros(len(columns))
    model.col_upper_ = np.full(len(columns), highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = demand, np.full(rows, highspy.kHighsInf)
    column, row = np.nonzero(columns)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(np.bincount(column, minlength=len(columns)))))
    model.a_matrix_.index_, model.a_matrix_.value_ = row, columns[column, row]
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.zeros(rows)
    values = np.maximum(np.array(solver.getSolution().row_dual), 0.0)
    # Exactly at most 1, however exactly the program was solved.
    result: Floats = values / max(1.0, float((patterns @ values).max()) * (1 + 1e-12))
    return result
