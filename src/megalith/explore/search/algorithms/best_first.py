"""Best-first search of a tree whose nodes have provable lower bounds.

The most promising node is opened first: by its bound or a better estimate, taken as far from the truth as
those of its family have turned out to be so far. A leaf that comes to the top is evaluated. What has a bound
above the best value found is ruled out; when nothing else is left that value is the optimum, proved. When the
budget ends earlier, the smallest bound still open is what nothing can beat: the gap to it is reported. Leaves
are evaluated in batches of a fixed size: any number of workers has the same outcome. Every leaf that is
evaluated is held to its bound: one that beats it raises a BoundError.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from megalith.core.bounds import checked_bound
from megalith.explore.search.algorithms.estimate_error import EstimateError

Node = TypeVar("Node")
Value = TypeVar("Value")


class SearchTree(ABC, Generic[Node, Value]):
    """What is searched: how a node is opened and bounded, and what its leaves cost."""

    @abstractmethod
    def roots(self) -> Iterable[Node]:
        """The nodes to begin with."""

    @abstractmethod
    def bound(self, node: Node) -> float:
        """No leaf below this node costs less; infinite if none is feasible."""

    @abstractmethod
    def branch(self, node: Node) -> Sequence[Node] | None:
        """The children of a node, or None for a leaf."""

    @abstractmethod
    def leaves(self, node: Node) -> int:
        """How many leaves lie below a node."""

    @abstractmethod
    def evaluate(self, leaves: Sequence[Node]) -> Sequence[tuple[float, Value]]:
        """Cost and value of each leaf; an infinite cost where it is not feasible."""

    def estimate(self, node: Node, bound: float) -> float:
        """What a node with this bound may well cost; it decides the order and nothing else."""
        return bound

    def family(self, node: Node) -> Hashable:
        """Names nodes whose estimates are about as far off; None where that is open."""
        return None

    def work(self, leaf: Node) -> float:
        """What evaluating a leaf takes of the budget."""
        return 1.0


@dataclass(frozen=True, slots=True)
class BestFirstOptions:
    """How far a search goes."""

    batch: int = 8
    """Leaves evaluated together."""
    budget: float = inf
    """Units of `SearchTree.work`, after which it ends."""
    slack: float = 0.0
    """With 0.05 leaves up to 5% above the best are evaluated too, for the sake of the runners-up."""
    incumbent: float = inf
    """A cost known beforehand."""
    closing: int = 0
    """When the budget ends, so many more nodes are opened, those with the lowest bounds first: what is proved
    of the rest grows with it."""
    closing_budget: float = 0.0
    """What may be spent on evaluating leaves that are lowest meanwhile."""


@dataclass(frozen=True, slots=True)
class EvaluatedLeaf(Generic[Node, Value]):
    """A leaf that was evaluated; its cost is infinite when it is not feasible."""

    leaf: Node
    cost: float
    value: Value


@dataclass(slots=True)
class BestFirstOutcome(Generic[Node, Value]):
    """What a search found: every leaf evaluated, cheapest first, and what is proved about the rest."""

    leaves: list[EvaluatedLeaf[Node, Value]] = field(default_factory=list)
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
    def best(self) -> EvaluatedLeaf[Node, Value] | None:
        """The cheapest leaf, if any is feasible."""
        return self.leaves[0] if self.leaves and self.leaves[0].cost < inf else None

    @property
    def exact(self) -> bool:
        """Whether every leaf was evaluated or ruled out, so that the best is proved."""
        return self.unopened == 0


def best_first(
    tree: SearchTree[Node, Value], options: BestFirstOptions | None = None
) -> BestFirstOutcome[Node, Value]:
    """Searches until the best is proved or the budget is spent."""
    return _BestFirst(tree, options or BestFirstOptions()).run()


class _BestFirst(Generic[Node, Value]):
    """State of one search: nodes to open, leaves to evaluate, the best cost so far."""

    def __init__(self, tree: SearchTree[Node, Value], options: BestFirstOptions) -> None:
        self.tree, self.options = tree, options
        self.outcome: BestFirstOutcome[Node, Value] = BestFirstOutcome()
        self.error = EstimateError()
        self.heap: list[tuple[float, int, float, float, Node]] = [
            (lowest := tree.bound(root), number, lowest, tree.estimate(root, lowest), root)
            for number, root in enumerate(tree.roots())
        ]
        """Promise, number (which keeps equals in order), bound, estimate, node."""
        heapq.heapify(self.heap)
        self.number = len(self.heap)
        self.best, self.spent = options.incumbent, 0.0
        self.waiting: list[tuple[float, float, Node]] = []
        """Leaves to be evaluated: bound, estimate, leaf."""

    def run(self) -> BestFirstOutcome[Node, Value]:
        tree, heap, outcome, error = self.tree, self.heap, self.outcome, self.error
        slack, budget, batch = self.options.slack, self.options.budget, self.options.batch
        while heap and self.spent < budget:
            promise, _, lowest, estimate, node = heapq.heappop(heap)
            limit = self.best * (1 + slack)
            if lowest > limit or lowest == inf:
                outcome.pruned += tree.leaves(node)
            elif heap and (now := estimate * error.factor(tree.family(node))) > max(promise, heap[0][0]):
                # What was learned meanwhile makes it less promising than it was.
                heapq.heappush(heap, (now, self.number, lowest, estimate, node))
                self.number += 1
            elif (children := tree.branch(node)) is None:
                self.waiting.append((lowest, estimate, node))
            else:
                self._push(children, lowest, limit)
            if len(self.waiting) == batch or (self.waiting and not heap):
                self._evaluate()
        self._count_the_rest()
        return outcome

    def _push(self, children: Sequence[Node], parent: float, limit: float) -> None:
        tree, heap, factor = self.tree, self.heap, self.error.factor
        for child in children:
            # A child is part of its parent, whose bound holds for it too.
            lowest = max(parent, tree.bound(child))
            if lowest > limit or lowest == inf:
                self.outcome.pruned += tree.leaves(child)
            else:
                estimate = tree.estimate(child, lowest)
                promise = estimate * factor(tree.family(child))
                heapq.heappush(heap, (promise, self.number, lowest, estimate, child))
                self.number += 1

    def _evaluate(self) -> None:
        tree = self.tree
        results = tree.evaluate([leaf for *_, leaf in self.waiting])
        for (lowest, estimate, leaf), (cost, value) in zip(self.waiting, results, strict=True):
            checked_bound(lowest, cost, leaf)
            self.outcome.leaves.append(EvaluatedLeaf(leaf, cost, value))
            self.error.learn(tree.family(leaf), estimate, cost)
            self.best = min(self.best, cost)
            self.spent += tree.work(leaf)
        self.waiting = []

    def _count_the_rest(self) -> None:
        tree, outcome = self.tree, self.outcome
        rest = [(lowest, node) for _, _, lowest, _, node in self.heap]
        rest += [(lowest, leaf) for lowest, _, leaf in self.waiting]
        closed = self._close(rest)
        best, outcome.evaluated = self.best, len(outcome.leaves)
        for lowest, node in closed:
            # What is no better than the best is ruled out as the best, however near it comes.
            if lowest >= best or lowest == inf:
                outcome.pruned += tree.leaves(node)
            else:
                outcome.unopened += tree.leaves(node)
                outcome.open.append(node)
                outcome.lower_bound = min(outcome.lower_bound, lowest)
        outcome.lower_bound = min(best, outcome.lower_bound)
        outcome.leaves.sort(key=lambda evaluated: evaluated.cost)

    def _close(self, rest: list[tuple[float, Node]]) -> list[tuple[float, Node]]:
        """Opens nodes with the lowest bounds, and evaluates leaves among them, as far as the options go."""
        tree, spent = self.tree, self.spent
        self.waiting = []
        heap = [(lowest, number, node) for number, (lowest, node) in enumerate(rest)]
        heapq.heapify(heap)
        number = len(heap)
        for _ in range(self.options.closing):
            if not heap or heap[0][0] >= self.best:
                break
            children = tree.branch(heap[0][2])
            if children is None and self.spent - spent >= self.options.closing_budget:
                break
            lowest, _, node = heapq.heappop(heap)
            if children is None:
                self.waiting.append((lowest, lowest, node))
                if len(self.waiting) == self.options.batch:
                    self._evaluate()
            for child in children or ():
                heapq.heappush(heap, (max(lowest, tree.bound(child)), number, child))
                number += 1
        if self.waiting:
            self._evaluate()
        return [(lowest, node) for lowest, _, node in heap]
