"""Local search: from the best plans, small moves as long as one of them helps.

It settles what the tree left open: plans that the budget did not reach, layers that move between stages,
sizes of buckets, overlap. A move is predicted only if its lower bound is below what it has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from megalith.core.bounds import checked_bound
from megalith.explore.search.space.decisions import Choice
from megalith.explore.search.bounds.lower_bounds import Floors
from megalith.explore.search.evaluate import Verdict
from megalith.explore.search.algorithms.neighbours import move_a_layer, neighbours
from megalith.explore.search.space.search_space import Space

OUTSIDE = ("buckets", "overlap", "layers")
"""Moves out of the tree; what is reached from there may be in it or not."""
_MOVES = 24
"""Of all moves from a plan, as many of the most promising are tried."""
_LAYER_MOVES = 8

Ask = Callable[[Sequence[Choice]], Sequence[Verdict]]


@dataclass(slots=True)
class Climb:
    """What was judged, by plan, and how each plan that a move led to came about."""

    verdicts: dict[Choice, Verdict]
    origin: dict[Choice, str] = field(default_factory=dict)
    spent: float = 0.0


def climb(
    space: Space,
    starts: Sequence[Choice],
    climbing: Climb,
    ask: Ask,
    floors: Floors,
    *,
    work: Callable[[Choice], float],
    budget: float,
    inside_tree: bool,
) -> None:
    """Moves from each of the starts until nothing helps or `budget` units of `work` are spent; then layers
    of the best.

    With `inside_tree` false (when the tree was searched to its end) only what lies outside of it is tried.
    """

    def step(here: Choice, options: list[tuple[str, Choice]], most: int) -> Choice:
        """The best of the options, or `here` if none is better."""
        limit = climbing.verdicts[here].seconds
        promising = [(floors(one), name, one) for name, one in options if one not in climbing.verdicts]
        promising = sorted((one for one in promising if one[0] < limit), key=lambda one: one[0])[:most]
        for (floor, name, one), verdict in zip(promising, ask([one[2] for one in promising]), strict=True):
            checked_bound(floor, verdict.seconds, one)
            climbing.verdicts[one] = verdict
            climbing.origin[one] = name
            climbing.spent += work(one)
        tried = [one for _, _, one in promising]
        return min([here, *tried], key=lambda one: climbing.verdicts[one].seconds)

    for start in starts:
        here = start
        while climbing.spent < budget:
            moves = [(n, one) for n, one in neighbours(space, here) if inside_tree or n in OUTSIDE]
            there = step(here, moves, _MOVES)
            if there == here:
                break
            here = there
    best = min(climbing.verdicts, key=lambda one: climbing.verdicts[one].seconds, default=None)
    while best is not None:
        there = step(best, list(_moved_layers(best, floors)), _LAYER_MOVES)
        if there == best or climbing.spent > 2 * budget:
            break
        best = there


def _moved_layers(plan: Choice, floors: Floors) -> Iterator[tuple[str, Choice]]:
    layers = floors.layers(plan)
    if layers is not None and plan.rhythm is not None and len(layers) > 1:
        for moved in move_a_layer(layers):
            yield "layers", replace(plan, rhythm=replace(plan.rhythm, layers_per_stage=moved))
