"""Best-first search of a tree whose nodes have provable lower bounds.

The node with the smallest bound is opened first. A leaf that reaches the top is evaluated; when no open node
has a bound below the best value found, that value is the optimum and the proof is complete. When the budget
ends earlier, the smallest bound still open is what nothing can beat: the gap to it is reported. Leaves are
evaluated in batches of a fixed size, so that the outcome is the same for any number of workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

Node = TypeVar("Node")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Scored(Generic[Node, Value]):
    """A leaf that was evaluated; its cost is infinite when it is not feasible."""

    leaf: Node
    cost: float
    value: Value


@dataclass(slots=True)
class Outcome(Generic[Node, Value]):
    """What a search found: every leaf evaluated, cheapest first, and what is proved about the rest."""

    found: list[Scored[Node, Value]] = field(default_factory=list)
    lower_bound: float = inf
    """No leaf of the tree is below this."""
    evaluated: int = 0
    pruned: int = 0
    """Leaves that bounds ruled out without evaluation."""
    unopened: int = 0
    """Leaves that are neither evaluated nor ruled out: none when the search was exact."""

    @property
    def best(self) -> Scored[Node, Value] | None:
        return self.found[0] if self.found and self.found[0].cost < inf else None

    @property
    def exact(self) -> bool:
        return self.unopened == 0


def best_first(
    roots: Iterable[Node],
    *,
    bound: Callable[[Node], float],
    branch: Callable[[Node], Sequence[Node] | None],
    leaves: Callable[[Node], int],
    evaluate: Callable[[Sequence[Node]], Sequence[tuple[float, Value]]],
    batch: int = 16,
    budget: float = inf,
    work: Callable[[Node], float] = lambda _: 1.0,
    incumbent: float = inf,
    slack: float = 0.0,
) -> Outcome[Node, Value]:
    """Searches until the best is proved or `budget` units of `work` are spent.

    `branch` opens a node, or says None for a leaf. `leaves` counts the leaves below a node. `incumbent` is a
    value known beforehand: nothing at or above it is worth evaluating. With a `slack` of 0.05 leaves up to 5%
    above the best are evaluated too, for the sake of the runners-up.
    """
    outcome: Outcome[Node, Value] = Outcome()
    heap: list[tuple[float, int, Node]] = []
    number = 0
    for root in roots:
        heap.append((bound(root), number, root))
        number += 1
    heapq.heapify(heap)
    best, spent = incumbent, 0.0
    waiting: list[Node] = []
    floor = inf
    while heap and spent < budget:
        lowest, _, node = heap[0]
        if lowest > best * (1 + slack) or lowest == inf:
            break
        heapq.heappop(heap)
        children = branch(node)
        if children is None:
            waiting.append(node)
            floor = min(floor, lowest)
        else:
            limit = best * (1 + slack)
            for child in children:
                # A child is part of its parent, whose bound holds for it too.
                value = max(lowest, bound(child))
                if value > limit or value == inf:
                    outcome.pruned += leaves(child)
                    continue
                heapq.heappush(heap, (value, number, child))
                number += 1
        if len(waiting) == batch or (waiting and (not heap or heap[0][0] > best * (1 + slack))):
            best = min(best, _evaluate(waiting, evaluate, outcome))
            spent += sum(map(work, waiting))
            waiting, floor = [], inf
    for lowest, _, node in heap:
        # What is no better than the best is ruled out as the best, however near it comes.
        if lowest >= best or lowest == inf:
            outcome.pruned += leaves(node)
        else:
            outcome.unopened += leaves(node)
    outcome.unopened += len(waiting)
    open_bound = min([floor, heap[0][0] if heap else inf])
    outcome.lower_bound = min(best, open_bound)
    outcome.found.sort(key=lambda one: one.cost)
    return outcome


def _evaluate(
    waiting: Sequence[Node],
    evaluate: Callable[[Sequence[Node]], Sequence[tuple[float, Value]]],
    outcome: Outcome[Node, Value],
) -> float:
    results = evaluate(waiting)
    for leaf, (cost, value) in zip(waiting, results, strict=True):
        outcome.found.append(Scored(leaf, cost, value))
    outcome.evaluated += len(waiting)
    return min(cost for cost, _ in results)
