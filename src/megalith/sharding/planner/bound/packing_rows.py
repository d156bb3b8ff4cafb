"""Rows of the bound that know packing: blocks cannot be split to fill the last corner of every worker.

Of blocks that each take more than 1/(k + 1) of what a worker has, at most k fit on it. More generally, count
for every shard how many (k + 1)ths it exceeds, less than all of it,

    parts(x) = ceil((k + 1) x) - 1        for the share x > 0 that it takes

then the shards of one worker have at most k together: each count is below (k + 1) x, these add up to at most
k + 1, and the sum of counts is a whole number below that. So a plan has at most k x workers, which is linear
in the options that tables take. It holds for the bytes of a tier, whose capacity is known, and for the
seconds of a phase where a case of the branch and bound says how long the phase takes at most. These are dual
feasible functions, as bounds of bin packing use them (Fekete and Schepers, 2001).

Blocks that span a node put their first shard on the first worker of a node, their second on the second, and
so on. So the workers of one position in their nodes must have room for the shards of that position.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from megalith.sharding.planner.bound.table_classes import KindOptions
from megalith.sharding.planner.types import Floats, PlacementProblem

MOST_PARTS = 8
"""Rows for blocks of more than a half, a third, ... and a ninth of a worker."""
_ROOM = 1 + 2e-9
"""Plans may fill memory by so much more than there is; a shard that is as large as a part must not count."""


class PackingRow(NamedTuple):
    """One row: a column of the shards' loads, what a worker has of it, and k; or, where that is 0, a position
    in the nodes."""

    column: int
    capacity: float
    parts: int
    position: int = -1

    def holds(self, rooms: Floats) -> bool:
        """Whether it is true of plans whose workers have so much."""
        return bool(self.capacity >= rooms[self.column])


class PackingRows:
    """Counts of a problem's options, kept for rows that were asked for before."""

    def __init__(self, problem: PlacementProblem, kinds: KindOptions) -> None:
        self._problem, self._kinds = problem, kinds
        self._known: dict[PackingRow, Floats] = {}
        self._ends = kinds.starts + kinds.width[:, None]
        nodes = problem.topology.per_node > 1 and bool((problem.width > 1).any())
        self._positions = range(min(problem.topology.per_node, problem.world_size) if nodes else 0)

    def counts(self, row: PackingRow) -> Floats:
        """Of each option of one table of each kind: the parts of all its shards."""
        kinds = self._kinds
        if row not in self._known and row.position >= 0:
            self._known[row] = self._at_position(row)
        if row not in self._known:
            shares = kinds.shards[:, row.column] * ((row.parts + 1) / (row.capacity * _ROOM))
            parts = np.maximum(np.ceil(shares) - 1.0, 0.0)
            # Sums of whole numbers are exact.
            before = np.concatenate(([0.0], np.cumsum(parts)))
            self._known[row] = np.asarray(
                (kinds.counts * (before[self._ends] - before[kinds.starts])).sum(axis=1)
            )
        return self._known[row]

    def _at_position(self, row: PackingRow) -> Floats:
        """Of each option: what its shards take on the workers of a position, as a share of one worker."""
        kinds, per_node = self._kinds, self._problem.topology.per_node
        shares = kinds.shards[:, row.column] / (row.capacity * _ROOM)
        taken = np.zeros(len(kinds.width))
        for width in np.unique(kinds.width[kinds.width > 1]).tolist():
            chosen = np.flatnonzero(kinds.width == width)
            # Only blocks that span whole nodes have their shards at known positions.
            members = np.arange(row.position, width, per_node)
            if width < per_node:
                continue
            for variant in range(2):
                there = shares[kinds.starts[chosen, variant][:, None] + members].sum(axis=1)
                taken[chosen] += kinds.counts[chosen, variant] * there
        return taken

    def limit(self, row: PackingRow) -> float:
        """What the counts of a plan add up to at most."""
        size, per_node = self._problem.world_size, self._problem.topology.per_node
        return float(len(range(row.position, size, per_node)) if row.position >= 0 else row.parts * size)

    def violated(self, mixture: Floats, phase_caps: Floats) -> list[PackingRow]:
        """Rows that a mixture of options breaks, in the bytes of all tiers and in phases with a cap."""
        problem, kinds = self._problem, self._kinds
        mixed = kinds.mixed(mixture)
        capacities = [*phase_caps.tolist(), *problem.capacity.tolist()]
        held = mixed @ problem.total[kinds.options]
        broken: list[PackingRow] = []
        for column, capacity in enumerate(capacities):
            # Half empty workers have room for anything.
            if not np.isfinite(capacity) or held[column] < 0.25 * capacity * problem.world_size:
                continue
            rows = [PackingRow(column, capacity, parts) for parts in range(1, MOST_PARTS + 1)]
            rows += [PackingRow(column, capacity, 0, position) for position in self._positions]
            broken += [row for row in rows if float(mixed @ self.counts(row)) > self.limit(row) * (1 + 1e-6)]
        return broken

    def needed_seconds(self, mixture: Floats, phase: int, at_least: float) -> float:
        """The least seconds, of a few multiples of `at_least`, in which a phase packs a mixture."""
        mixed = self._kinds.mixed(mixture)
        for factor in (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6):
            rows = [PackingRow(phase, at_least * factor, parts) for parts in range(1, MOST_PARTS + 1)]
            if all(float(mixed @ self.counts(row)) <= self.limit(row) for row in rows):
                return at_least * factor
        return 2 * at_least
