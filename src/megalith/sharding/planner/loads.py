"""What the workers of a solution do and hold, and how long a step of it takes.

Processes of one host share it: one whose peers wait is quicker, all together are not (`phase_seconds`).
Exchanges count at the side that differs between workers (who holds rows); the side of the samples is the mean
of it, as local batches are equal, and never the slower one.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.topology import Topology
from megalith.sharding.planner.types import NUM_PHASES, Floats, Ints, PlacementProblem, PlacementSolution


def loads_of(problem: PlacementProblem, solution: PlacementSolution) -> Floats:
    """Seconds and bytes of every worker: [workers, phases + tiers]."""
    columns = problem.shards.shape[1]
    loads = np.zeros((problem.world_size, columns))
    lengths = np.array([len(groups) for groups in solution.groups], dtype=np.int64)
    option = np.repeat(solution.choice, lengths)
    group = np.concatenate([np.empty(0, dtype=np.int64), *solution.groups])
    # Blocks of the wider variant come first.
    number = np.arange(len(option)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    start = problem.starts[option, (number >= problem.counts[option, 0]).astype(np.int64)]
    widths = problem.width[option]
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        shards = problem.shards[(start[chosen, None] + np.arange(width)).ravel()]
        workers = (group[chosen, None] * width + np.arange(width)).ravel()
        for column in range(columns):
            loads[:, column] += np.bincount(workers, shards[:, column], problem.world_size)
    return loads


def add_blocks(loads: Floats, blocks: Floats, groups: Ints, sign: float = 1.0) -> None:
    """Adds blocks to (or takes them off) the workers of their groups; the groups are distinct."""
    width = blocks.shape[1]
    workers = (groups[:, None] * width + np.arange(width)).ravel()
    loads[workers] += sign * blocks.reshape(-1, blocks.shape[2])


def fits(problem: PlacementProblem, loads: Floats) -> bool:
    """Whether every worker has the memory that it needs."""
    return bool((loads[:, NUM_PHASES:] <= problem.capacity * (1 + 1e-9)).all())


def solution_seconds(problem: PlacementProblem, solution: PlacementSolution) -> float:
    """The embedding part of a step under a solution."""
    return step_seconds(problem, loads_of(problem, solution), solution)


def step_seconds(
    problem: PlacementProblem, loads: Floats, solution: PlacementSolution | None = None
) -> float:
    """The embedding part of a step: the most loaded worker of each phase, and latencies."""
    seconds = float(problem.weights @ phase_seconds(problem.topology, loads)) + problem.latency_seconds
    if solution is not None:
        seconds += extra_latency(
            problem.topology, {problem.options[option].kind for option in solution.choice}
        )
    return seconds


def phase_seconds(topology: Topology, loads: Floats) -> Floats:
    """How long each phase takes: its slowest worker, and no less than a host needs for all of its workers."""
    phases = loads[:, :NUM_PHASES]
    slowest: Floats = phases.max(axis=0)
    if topology.idle_peer_factor == 1.0:
        return slowest
    hosts = np.add.reduceat(phases, np.arange(0, len(phases), topology.per_node)) / topology.per_node
    return np.maximum(topology.idle_peer_factor * slowest, hosts.max(axis=0))


def extra_latency(topology: Topology, kinds: set[str]) -> float:
    """Collectives, and work apart, that only some kinds need."""
    seconds = 0.0
    if kinds & {"table_row", "grid"}:
        seconds += 2 * (topology.in_node.latency + topology.across_nodes.latency)
    if "data_parallel" in kinds:
        seconds += topology.all_reduce.latency + topology.constants.copied_seconds
    return seconds


def imbalance(loads: Floats, weights: Floats) -> float:
    """Largest over mean, less one: of the phases' seconds together, each at the worker that is slowest in it,
    as no worker continues before. With one phase it is the usual ratio."""
    phases = loads[:, :NUM_PHASES]
    mean = float(weights @ phases.mean(axis=0))
    return float(weights @ phases.max(axis=0)) / mean - 1 if mean else 0.0
