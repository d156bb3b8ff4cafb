"""Local search: from the best plans, small moves as long as one of them helps.

It settles what the tree left open: plans that the budget did not reach, layers that move between stages,
sizes of buckets, overlap. A move is predicted only if its lower bound is below what it has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from megalith.core.bounds import checked_bound
from megalith.explore.search.algorithms.neighbours import move_a_layer, neighbours
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.evaluate import PlanEvaluation
from megalith.explore.search.space.decisions import PlanCandidate
from megalith.explore.search.space.search_space import SearchSpace

OUTSIDE = ("buckets", "overlap", "layers", "greedy order")
"""Moves out of the tree; what is reached from there may be in it or not."""
_MOVES = 24
"""Of all moves from a plan, as many of the most promising are tried."""
_LAYER_MOVES = 8

EvaluateAll = Callable[[Sequence[PlanCandidate]], Sequence[PlanEvaluation]]


@dataclass(slots=True)
class EvaluationLog:
    """Everything that a search evaluated, by plan; and which move led to a plan, where one did."""

    evaluations: dict[PlanCandidate, PlanEvaluation] = field(default_factory=dict)
    moves: dict[PlanCandidate, str] = field(default_factory=dict)

    def seconds(self, plan: PlanCandidate) -> float:
        """The step of a plan that was evaluated; infinite if it cannot run."""
        return self.evaluations[plan].seconds


class LocalSearch:
    """Improves plans of one space by moves; what it evaluates goes to the log."""

    def __init__(
        self, space: SearchSpace, bounds: LowerBounds, log: EvaluationLog, evaluate_all: EvaluateAll
    ) -> None:
        self._space, self._bounds, self._log = space, bounds, log
        self._evaluate_all = evaluate_all
        self._spent = 0.0

    def improve(self, starts: Sequence[PlanCandidate], *, budget: float, inside_tree: bool) -> None:
        """Moves from each of the starts until nothing helps or `budget` units of work are spent; then layers
        of the best.

        With `inside_tree` false (when the tree was searched to its end) only what lies outside of it is
        tried.
        """
        log = self._log
        for start in starts:
            plan = start
            while self._spent < budget:
                moves = [
                    (move, other)
                    for move, other in neighbours(self._space, plan)
                    if inside_tree or move in OUTSIDE
                ]
                better = self._best_of(plan, moves, _MOVES)
                if better == plan:
                    break
                plan = better
        best = min(log.evaluations, key=log.seconds, default=None)
        while best is not None:
            better = self._best_of(best, list(self._layer_moves(best)), _LAYER_MOVES)
            if better == best or self._spent > 2 * budget:
                break
            best = better

    def _best_of(
        self, plan: PlanCandidate, moves: list[tuple[str, PlanCandidate]], most: int
    ) -> PlanCandidate:
        """The best of the plans that moves lead to, or `plan` if none is better."""
        log = self._log
        limit = log.seconds(plan)
        bounded = [
            (self._bounds(other), move, other) for move, other in moves if other not in log.evaluations
        ]
        promising = sorted((entry for entry in bounded if entry[0] < limit), key=lambda entry: entry[0])[
            :most
        ]
        tried = [other for _, _, other in promising]
        for (bound, move, other), evaluation in zip(promising, self._evaluate_all(tried), strict=True):
            checked_bound(bound, evaluation.seconds, other)
            log.evaluations[other] = evaluation
            log.moves[other] = move
            self._spent += self._space.work(other)
        return min([plan, *tried], key=log.seconds)

    def _layer_moves(self, plan: PlanCandidate) -> Iterator[tuple[str, PlanCandidate]]:
        layers = self._bounds.layers(plan)
        if layers is not None and plan.pipeline is not None and len(layers) > 1:
            for moved in move_a_layer(layers):
                yield "layers", replace(plan, pipeline=replace(plan.pipeline, layers_per_stage=moved))
