"""Karmarkar and Karp's largest differencing, for any number of workers.

Every block starts as a partition of its own: itself on one worker, nothing on the others. Again and again the
two partitions with the largest spread between their most and least loaded worker are merged, the most loaded
of one with the least loaded of the other, so that large differences cancel. Sizes are the weighted seconds of
all phases. Blocks that span all workers or a node are placed first and form one partition of their own.
"""

from __future__ import annotations

import heapq

import numpy as np

from megalith.sharding.planner.loads import add_blocks
from megalith.sharding.planner.partition.greedy import least_loaded, make_room
from megalith.sharding.planner.types import NUM_PHASES, Ints, PlacementProblem, PlacementSolution


def karmarkar_karp(problem: PlacementProblem, choice: Ints) -> PlacementSolution | None:
    """Workers for every block of the chosen options, or None if that does not fit.

    Slices of one table on the same worker are separated at the end; workers that are too full give
    blocks away.
    """
    size = problem.world_size
    groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
    fixed = np.zeros((size, problem.shards.shape[1]))
    owners, seconds = [], []
    for table, option in enumerate(choice.tolist()):
        blocks = problem.blocks(option)
        if blocks.shape[1] > 1:
            placed = least_loaded(problem, fixed, blocks, problem.num_groups(option))
            if placed is None:
                return None
            groups[table] = placed
            add_blocks(fixed, blocks, placed)
            continue
        cost = blocks[:, 0, :NUM_PHASES] @ problem.weights
        owners += [table] * len(cost)
        seconds += cost.tolist()
    base = fixed[:, :NUM_PHASES] @ problem.weights
    targets = _difference(np.array(seconds), base)
    workers_by_table: dict[int, list[int]] = {}
    for owner, worker in zip(owners, targets.tolist(), strict=True):
        workers_by_table.setdefault(owner, []).append(worker)
    for table, workers in workers_by_table.items():
        groups[table] = np.array(workers, dtype=np.int64)
    solution = PlacementSolution(choice.copy(), groups)
    loads = fixed
    for table in workers_by_table:
        _separate(problem, solution, table, loads)
    return make_room(problem, solution)


def _separate(problem: PlacementProblem, solution: PlacementSolution, table: int, loads: np.ndarray) -> None:
    """Places a table's slices; the second of two on one worker goes to the least loaded other."""
    blocks = problem.blocks(int(solution.choice[table]))
    groups = solution.groups[table]
    taken: set[int] = set()
    for number, worker in enumerate(groups.tolist()):
        target = worker
        if worker in taken:
            order = np.argsort(loads[:, :NUM_PHASES] @ problem.weights, kind="stable")
            target = next(int(other) for other in order if int(other) not in taken)
        taken.add(target)
        groups[number] = target
        loads[target] += blocks[number, 0]


def _difference(seconds: np.ndarray, base: np.ndarray) -> Ints:
    """The worker of each block; `base` is what each worker has already."""
    size = len(base)
    # A partition: loads rising, and for each of its positions the worker of `base` or blocks that lie there.
    rising = np.argsort(base, kind="stable")
    members: list[list[int]] = [[-1 - int(worker)] for worker in rising]
    heap: list[tuple[float, int, np.ndarray, list[list[int]]]] = []
    loads = base[rising] - base.min()
    heapq.heappush(heap, (-float(loads[-1]), -1, loads, members))
    for number, cost in enumerate(seconds.tolist()):
        single = np.zeros(size)
        single[-1] = cost
        heapq.heappush(heap, (-cost, number, single, [[]] * (size - 1) + [[number]]))
    counter = len(seconds)
    while len(heap) > 1:
        _, _, largest, members = heapq.heappop(heap)
        _, _, second, others = heapq.heappop(heap)
        merged = largest + second[::-1]
        joined = [left + right for left, right in zip(members, reversed(others), strict=True)]
        order = np.argsort(merged, kind="stable")
        merged = merged[order]
        merged -= merged[0]
        counter += 1
        heapq.heappush(heap, (-float(merged[-1]), counter, merged, [joined[position] for position in order]))
    targets = np.empty(len(seconds), dtype=np.int64)
    for content in heap[0][3]:
        worker = next(-1 - block for block in content if block < 0)
        targets[[block for block in content if block >= 0]] = worker
    return targets
