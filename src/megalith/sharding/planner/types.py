"""The planning problem as arrays, and what a plan costs.

A step has four phases, each of which ends when the slowest worker does:

    input      ids and lengths arrive at the workers that hold rows
    lookup     rows are read and pooled
    exchange   pooled vectors go to their samples, gradients come back; gradients of copied tables are summed
    update     gradients are added up and rows updated

so the step is the sum over phases of the most loaded worker's seconds, and every option of a table is a block
of seconds and bytes that it adds to the workers it lands on. Processes of one host share it: one whose
neighbours wait is quicker, all together are not (`phase_seconds`). Exchanges count at the side that differs
between workers (who holds rows); the side of the samples is the mean of it, as local batches are equal, and
never the slower one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.sharding.planner.enumerate import Way
from megalith.sharding.planner.topology import Workers

PHASES = ("input", "lookup", "exchange", "update")
NUM_PHASES = len(PHASES)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """Options of all tables. Columns of loads: the seconds of each phase, then the bytes of each tier."""

    tables: tuple[TableSpec, ...]
    workers: Workers
    ways: tuple[Way, ...]
    """Of every option, table after table."""
    first: Ints
    """Options of table t: [first[t], first[t + 1])."""
    table: Ints
    """The table of each option."""
    width: Ints
    """Workers that a block of the option spans: 1, those of a node, or all."""
    counts: Ints
    """[options, 2]: blocks of its two variants, as slices may differ by a column."""
    starts: Ints
    """[options, 2]: where the loads of each variant begin in `shards`."""
    shards: Floats
    """[all shards, phases + tiers]"""
    total: Floats
    """[options, phases + tiers]: over all workers."""
    peak: Floats
    """[options, phases + tiers]: of the worker that gets most of it, one block each; seconds while its
    neighbours wait, since no phase can be quicker than that."""
    capacity: Floats
    """Bytes of each tier that tables may take on a worker."""
    weights: Floats
    """Of the phases: 0 where the pipeline hides one."""
    latency_seconds: float
    """What every plan pays whatever is sent."""
    global_batch: int

    @property
    def num_tables(self) -> int:
        return len(self.tables)

    @property
    def world_size(self) -> int:
        return self.workers.world_size

    def groups(self, option: int) -> int:
        """Places where a block of the option can go."""
        width = int(self.width[option])
        if width == 1:
            return self.world_size
        return 1 if width == self.world_size else self.workers.whole_nodes

    def blocks(self, option: int) -> Floats:
        """[blocks, width, phases + tiers], the wider variant first."""
        width = int(self.width[option])
        parts = [
            np.broadcast_to(self.shards[start : start + width], (int(count), width, self.shards.shape[1]))
            for start, count in zip(self.starts[option], self.counts[option], strict=True)
            if count
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def options(self, table: int) -> range:
        return range(int(self.first[table]), int(self.first[table + 1]))


@dataclass
class Solution:
    """An option for every table and a place for each of its blocks."""

    choice: Ints
    groups: list[Ints]
    """Of each table: the group (worker, node, or 0 for everybody) of each block."""

    def copy(self) -> Solution:
        return Solution(self.choice.copy(), [groups.copy() for groups in self.groups])


def loads_of(problem: Problem, solution: Solution) -> Floats:
    """[workers, phases + tiers]"""
    columns = problem.shards.shape[1]
    loads = np.zeros((problem.world_size, columns))
    lengths = np.array([len(groups) for groups in solution.groups], dtype=np.int64)
    option = np.repeat(solution.choice, lengths)
    group = np.concatenate([np.empty(0, dtype=np.int64), *solution.groups])
    # Blocks of the wider variant come first.
    place = np.arange(len(option)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    start = problem.starts[option, (place >= problem.counts[option, 0]).astype(np.int64)]
    width = problem.width[option]
    for one in np.unique(width):
        chosen = np.flatnonzero(width == one)
        shards = problem.shards[(start[chosen, None] + np.arange(one)).ravel()]
        workers = (group[chosen, None] * one + np.arange(one)).ravel()
        for column in range(columns):
            loads[:, column] += np.bincount(workers, shards[:, column], problem.world_size)
    return loads


def add_blocks(loads: Floats, blocks: Floats, groups: Ints, sign: float = 1.0) -> None:
    """Lays blocks on (or takes them off) the workers of their groups; the groups are distinct."""
    width = blocks.shape[1]
    places = (groups[:, None] * width + np.arange(width)).ravel()
    loads[places] += sign * blocks.reshape(-1, blocks.shape[2])


def fits(problem: Problem, loads: Floats) -> bool:
    return bool((loads[:, NUM_PHASES:] <= problem.capacity * (1 + 1e-9)).all())


def step_seconds(problem: Problem, loads: Floats, solution: Solution | None = None) -> float:
    """The embedding part of a step: the most loaded worker of each phase, and latencies."""
    seconds = float(problem.weights @ phase_seconds(problem.workers, loads)) + problem.latency_seconds
    if solution is not None:
        seconds += extra_latency(problem.workers, {problem.ways[option].kind for option in solution.choice})
    return seconds


def phase_seconds(workers: Workers, loads: Floats) -> Floats:
    """How long each phase takes: its slowest worker, and no less than a host needs for all of its workers."""
    phases = loads[:, :NUM_PHASES]
    slowest: Floats = phases.max(axis=0)
    if workers.alone == 1.0:
        return slowest
    hosts = np.add.reduceat(phases, np.arange(0, len(phases), workers.per_node)) / workers.per_node
    return np.maximum(workers.alone * slowest, hosts.max(axis=0))


def extra_latency(workers: Workers, kinds: set[str]) -> float:
    """Collectives, and work apart, that only some kinds need."""
    seconds = 0.0
    if kinds & {"table_row", "grid"}:
        seconds += 2 * (workers.inside.latency + workers.across.latency)
    if "data_parallel" in kinds:
        seconds += workers.all_reduce.latency + workers.constants.copied_seconds
    return seconds


def imbalance(loads: Floats, weights: Floats) -> float:
    """Largest over mean, less one: of the phases' seconds together, each at the worker that is slowest in it,
    as nobody goes on before. With one phase it is the usual ratio."""
    phases = loads[:, :NUM_PHASES]
    mean = float(weights @ phases.mean(axis=0))
    return float(weights @ phases.max(axis=0)) / mean - 1 if mean else 0.0
