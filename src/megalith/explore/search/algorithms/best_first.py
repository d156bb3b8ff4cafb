"""Best-first search of a tree whose nodes have provable lower bounds.

The most promising node is opened first: by its bound or a better guess, taken as far from the truth as those
of its family have turned out to be so far. A leaf that comes to the top is evaluated. What has a bound above
the best value found is ruled out; when nothing else is left that value is the optimum, proved. When the
budget ends earlier, the smallest bound still open is what nothing can beat: the gap to it is reported. Leaves
are evaluated in batches of a fixed size: any number of workers has the same outcome. Every leaf that is
evaluated is held to its bound: one that beats it raises a BoundError.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from megalith.core.bounds import checked_bound

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
    open: list[Node] = field(default_factory=list)
    """Nodes that hold the unopened leaves."""

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
    guess: Callable[[Node, float], float] = lambda _, lowest: lowest,
    family: Callable[[Node], Hashable] = lambda _: None,
    work: Callable[[Node], float] = lambda _: 1.0,
    batch: int = 8,
    budget: float = inf,
    slack: float = 0.0,
    incumbent: float = inf,
    closing: int = 0,
) -> Outcome[Node, Value]:
    """Searches until the best is proved or `budget` units of `work` are spent.

    `branch` opens a node, or says None for a leaf. `leaves` counts the leaves below a node. `guess` says what
    a node may well cost, given its bound; it decides the order and nothing else. `family` names nodes whose
    guesses are about as far off, None where that is open. With a `slack` of 0.05 leaves up to 5%
    above the best are evaluated too, for the sake of the runners-up. `incumbent` is a cost known beforehand.
    When the budget ends, `closing` more nodes are opened, those with the lowest bounds first, without
    evaluating leaves: what is proved of the rest grows with it.
    """
    outcome: Outcome[Node, Value] = Outcome()
    looseness = _Looseness()
    heap = [
        (lowest := bound(root), number, lowest, guess(root, lowest), root)
        for number, root in enumerate(roots)
    ]
    heapq.heapify(heap)
    number, best, spent = len(heap), incumbent, 0.0
    waiting: list[tuple[float, float, Node]] = []
    while heap and spent < budget:
        promise, _, lowest, guessed, node = heapq.heappop(heap)
        limit = best * (1 + slack)
        if lowest > limit or lowest == inf:
            outcome.pruned += leaves(node)
        elif heap and (now := guessed * looseness.of(family(node))) > max(promise, heap[0][0]):
            # What was learned meanwhile makes it less promising than it was.
            heapq.heappush(heap, (now, number, lowest, guessed, node))
            number += 1
        elif (children := branch(node)) is None:
            waiting.append((lowest, guessed, node))
        else:
            for child in children:
                # A child is part of its parent, whose bound holds for it too.
                value = max(lowest, bound(child))
                if value > limit or value == inf:
                    outcome.pruned += leaves(child)
                else:
                    guessed = guess(child, value)
                    promise = guessed * looseness.of(family(child))
                    heapq.heappush(heap, (promise, number, value, guessed, child))
                    number += 1
        if len(waiting) == batch or (waiting and not heap):
            results = evaluate([leaf for *_, leaf in waiting])
            for (lowest, guessed, leaf), (cost, found) in zip(waiting, results, strict=True):
                checked_bound(lowest, cost, leaf)
                outcome.found.append(Scored(leaf, cost, found))
                looseness.learn(family(leaf), guessed, cost)
                best = min(best, cost)
                spent += work(leaf)
            waiting = []
    outcome.evaluated = len(outcome.found)
    rest = [(lowest, node) for _, _, lowest, _, node in heap] + [
        (lowest, leaf) for lowest, _, leaf in waiting
    ]
    rest = _close(rest, best, bound, branch, closing)
    for lowest, node in rest:
        # What is no better than the best is ruled out as the best, however near it comes.
        if lowest >= best or lowest == inf:
            outcome.pruned += leaves(node)
        else:
            outcome.unopened += leaves(node)
            outcome.open.append(node)
            outcome.lower_bound = min(outcome.lower_bound, lowest)
    outcome.lower_bound = min(best, outcome.lower_bound)
    outcome.found.sort(key=lambda one: one.cost)
    return outcome


def _close(
    rest: list[tuple[float, Node]],
    best: float,
    bound: Callable[[Node], float],
    branch: Callable[[Node], Sequence[Node] | None],
    closing: int,
) -> list[tuple[float, Node]]:
    """Opens nodes with the lowest bounds until one of them is a leaf, or `closing` are opened."""
    heap = [(lowest, number, node) for number, (lowest, node) in enumerate(rest)]
    heapq.heapify(heap)
    number = len(heap)
    for _ in range(closing):
        if not heap or heap[0][0] >= best or (children := branch(heap[0][2])) is None:
            break
        lowest, _, _ = heapq.heappop(heap)
        for child in children:
            heapq.heappush(heap, (max(lowest, bound(child)), number, child))
            number += 1
    return [(lowest, node) for lowest, _, node in heap]


_AS_BAD_AS = 4.0


class _Looseness:
    """How many times its guess a leaf of a family cost so far, on average; for nodes of no family, how many
    times its guess the best leaf did."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, tuple[float, int]] = {}
        self._best = inf
        self._of_best = 1.0

    def of(self, family: Hashable) -> float:
        if family is None:
            return self._of_best
        total, count = self._sums.get(family, (0.0, 0))
        # One leaf as guessed to begin with: a family is worth a try until it has shown otherwise.
        return (1.0 + total) / (1 + count)

    def learn(self, family: Hashable, guess: float, cost: float) -> None:
        if guess <= 0:
            return
        # What cannot run is as bad as what runs badly.
        cost = min(cost, _AS_BAD_AS * guess)
        total, count = self._sums.get(family, (0.0, 0))
        self._sums[family] = total + cost / guess, count + 1
        if cost < self._best:
            self._best, self._of_best = cost, cost / guess
