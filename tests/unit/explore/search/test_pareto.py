"""The front: nothing in it is dominated, and everything outside of it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megalith.explore.search.analysis.pareto import pareto_front

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=30)


def dominates(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@given(points)
def test_the_front_is_what_nothing_dominates(items: list[tuple[int, int, int]]) -> None:
    front = pareto_front(items, lambda item: item)
    assert set(front) == {one for one in items if not any(dominates(other, one) for other in items)}
    assert len(front) == len(set(front))


def test_the_front_is_in_the_order_of_the_first_measure() -> None:
    assert pareto_front([(3, 1), (1, 3), (2, 2)], lambda item: item) == [(1, 3), (2, 2), (3, 1)]
