"""The plans that no other plan beats on every count at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def pareto_front(items: Iterable[Item], measures: Callable[[Item], Sequence[float]]) -> list[Item]:
    """Items that nothing dominates, all measures to be small, in the order of the first measure.

    One item dominates another when it is nowhere worse and somewhere better; of equals the first stays.

    >>> pareto_front([(1, 3), (2, 2), (3, 3), (3, 1)], lambda item: item)
    [(1, 3), (2, 2), (3, 1)]
    """
    ordered = sorted(items, key=lambda item: tuple(measures(item)))
    kept: list[tuple[tuple[float, ...], Item]] = []
    for item in ordered:
        values = tuple(measures(item))
        # Whatever dominates an item comes before it in this order.
        if not any(all(a <= b for a, b in zip(other, values, strict=True)) for other, _ in kept):
            kept.append((values, item))
    return [item for _, item in kept]
