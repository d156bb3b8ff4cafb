"""Best-first search against brute force, over hand-made trees and costs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import BoundError
from megalith.explore.search.algorithms.best_first import (
    BestFirstOptions,
    BestFirstOutcome,
    SearchTree,
    best_first,
)

WIDTHS = (4, 3, 5)
Path = tuple[int, ...]


class Tree(SearchTree[Path, None]):
    """Paths of three digits with a random cost each, some infeasible, and bounds that may be loose; with a
    looseness below zero they are wrong."""

    def __init__(self, seed: int, looseness: float, infeasible: float = 0.1) -> None:
        draw = random.Random(seed)
        self.cost = {
            path: inf if draw.random() < infeasible else draw.uniform(1, 10)
            for path in product(*map(range, WIDTHS))
        }
        self.looseness = looseness
        self.evaluated: list[Path] = []

    def roots(self) -> list[Path]:
        return [(i,) for i in range(WIDTHS[0])]

    def bound(self, node: Path) -> float:
        below = [cost for path, cost in self.cost.items() if path[: len(node)] == node]
        return min(below) * (1 - self.looseness)

    def branch(self, node: Path) -> list[Path] | None:
        return [(*node, i) for i in range(WIDTHS[len(node)])] if len(node) < len(WIDTHS) else None

    def leaves(self, node: Path) -> int:
        return sum(path[: len(node)] == node for path in self.cost)

    def evaluate(self, leaves: Sequence[Path]) -> list[tuple[float, None]]:
        self.evaluated.extend(leaves)
        return [(self.cost[leaf], None) for leaf in leaves]

    def search(self, **options: float) -> BestFirstOutcome[Path, None]:
        return best_first(self, BestFirstOptions(**options))  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.floats(0, 0.9), st.integers(1, 20))
def test_the_best_leaf_is_the_best_of_all(seed: int, looseness: float, batch: int) -> None:
    tree = Tree(seed, looseness)
    outcome = tree.search(batch=batch)
    assert outcome.best is not None
    assert outcome.best.cost == min(tree.cost.values())
    assert outcome.exact
    assert outcome.lower_bound == outcome.best.cost
    assert outcome.evaluated + outcome.pruned == len(tree.cost)


@given(st.integers(0, 10**6), st.floats(0, 0.9), st.integers(1, 30))
def test_a_search_cut_short_reports_a_bound_that_holds(seed: int, looseness: float, budget: int) -> None:
    tree = Tree(seed, looseness)
    outcome = tree.search(batch=4, budget=budget)
    optimum = min(tree.cost.values())
    assert outcome.lower_bound <= optimum
    assert outcome.evaluated + outcome.pruned + outcome.unopened == len(tree.cost)
    if outcome.best is not None and outcome.exact:
        assert outcome.best.cost == optimum


def test_exact_bounds_evaluate_one_batch_only() -> None:
    tree = Tree(seed=1, looseness=0.0)
    tree.search(batch=1)
    assert len(tree.evaluated) == 1


def test_slack_brings_the_runners_up_too() -> None:
    tree = Tree(seed=2, looseness=0.0)
    outcome = tree.search(batch=1, slack=0.5)
    optimum = min(tree.cost.values())
    near = sorted(cost for cost in tree.cost.values() if cost <= 1.5 * optimum)
    assert [one.cost for one in outcome.leaves if one.cost <= 1.5 * optimum] == near


def test_nothing_feasible_has_no_best() -> None:
    tree = Tree(seed=3, looseness=0.0, infeasible=1.1)
    outcome = tree.search()
    assert outcome.best is None
    assert outcome.lower_bound == inf
    assert outcome.pruned + outcome.evaluated == len(tree.cost)


@given(st.integers(0, 10**6), st.floats(-0.9, -0.001), st.integers(1, 20))
def test_a_leaf_that_beats_its_bound_ends_the_search(seed: int, looseness: float, batch: int) -> None:
    with pytest.raises(BoundError, match="so the bound is wrong"):
        Tree(seed, looseness).search(batch=batch)


def test_leaves_that_hold_the_bound_down_are_evaluated_in_closing() -> None:
    plain = Tree(seed=4, looseness=0.6).search(batch=1, budget=3, closing=200)
    tree = Tree(seed=4, looseness=0.6)
    closed = tree.search(batch=1, budget=3, closing=200, closing_budget=20)
    assert closed.lower_bound > plain.lower_bound
    assert closed.lower_bound <= min(tree.cost.values())
    assert plain.evaluated < closed.evaluated <= 23
    assert closed.evaluated + closed.pruned + closed.unopened == len(tree.cost)


def test_unopened_leaves_lie_below_open_nodes() -> None:
    tree = Tree(seed=4, looseness=0.6)
    outcome = tree.search(batch=4, budget=8)
    assert outcome.unopened == sum(map(tree.leaves, outcome.open)) > 0
    evaluated = {one.leaf for one in outcome.leaves}
    below = {path for path in tree.cost for node in outcome.open if path[: len(node)] == node}
    assert not evaluated & below
    assert outcome.lower_bound <= min(tree.cost[path] for path in below)
