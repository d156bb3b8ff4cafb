"""Local search: from the best plans, small moves as long as one of them helps.

It settles what the tree left open: plans that the budget did not reach, layers that move between stages,
sizes of buckets. A move is predicted only if its lower bound is below what it has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from megalith.explore.search.choices import Choice
from megalith.explore.search.judge import Verdict
from megalith.explore.search.moves import move_a_layer, neighbours
from megalith.explore.search.space import Space

Ask = Callable[[Sequence[Choice]], Sequence[Verdict]]


@dataclass(slots=True)
class Climb:
    """What was judged, by plan, and how each plan that helped came about."""

    verdicts: dict[Choice, Verdict]
    origin: dict[Choice, str] = field(default_factory=dict)
    examined: int = 0
    ruled_out: int = 0


def climb(
    space: Space,
    starts: Sequence[Choice],
    climbing: Climb,
    ask: Ask,
    bound: Callable[[Choice], float],
    even_layers: Callable[[Choice], tuple[int, ...] | None],
    *,
    budget: int,
    inside_tree: bool,
) -> None:
    """Moves from each of the starts until nothing helps or `budget` predictions are spent.

    With `inside_tree` false (when the tree was searched to its end) only what lies outside of it is tried.
    """
    for start in starts:
        here, best = start, climbing.verdicts[start].seconds
        while climbing.examined < budget:
            options = list(_fresh(space, here, climbing, even_layers, inside_tree))
            promising = [(name, one) for name, one in options if bound(one) < best]
            climbing.ruled_out += len(options) - len(promising)
            promising = promising[: max(0, budget - climbing.examined)]
            verdicts = ask([one for _, one in promising])
            climbing.examined += len(promising)
            better, seconds = None, best
            for (name, one), verdict in zip(promising, verdicts, strict=True):
                climbing.verdicts[one] = verdict
                climbing.origin[one] = name
                if verdict.seconds < seconds:
                    better, seconds = one, verdict.seconds
            if better is None or seconds == inf:
                break
            here, best = better, seconds


def _fresh(
    space: Space,
    plan: Choice,
    climbing: Climb,
    even_layers: Callable[[Choice], tuple[int, ...] | None],
    inside_tree: bool,
) -> Iterator[tuple[str, Choice]]:
    """Neighbours that nobody has judged yet."""
    seen = set(climbing.verdicts)
    for name, one in neighbours(space, plan):
        if (inside_tree or name == "buckets") and one not in seen:
            seen.add(one)
            yield name, one
    layers = even_layers(plan)
    if layers is not None and plan.rhythm is not None and len(layers) > 1:
        for moved in move_a_layer(layers):
            one = replace(plan, rhythm=replace(plan.rhythm, layers_per_stage=moved))
            if one not in seen:
                seen.add(one)
                yield "layers", one
