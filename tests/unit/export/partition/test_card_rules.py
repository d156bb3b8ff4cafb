"""Where tables go: each exactly once, no card over its memory, by the rule as it is written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.export.partition.rules import RULES, Item, big_then_costly, lowest_cost

MB = 10**6
items = st.lists(
    st.builds(Item, st.integers(1, 400 * MB), st.floats(0, 1e9), st.floats(0, 1e8)), min_size=1, max_size=25
)


@pytest.mark.parametrize("rule", RULES)
@given(items=items, cards=st.integers(1, 8), capacity=st.integers(1, 2000 * MB))
def test_tables_lie_once_within_memory_and_are_left_out_only_for_want_of_it(
    rule: str, items: list[Item], cards: int, capacity: int
) -> None:
    found = RULES[rule](items, cards, capacity)
    if found is None:
        assert sum(item.bytes for item in items) > capacity
        return
    assert len(found) == len(items)
    for card in range(cards):
        assert sum(item.bytes for item, place in zip(items, found, strict=True) if place == card) <= capacity
    assert set(found) <= set(range(cards))


@pytest.mark.parametrize("rule", RULES)
@given(items=items, cards=st.integers(1, 8))
def test_no_rule_beats_the_lower_bound(rule: str, items: list[Item], cards: int) -> None:
    found = RULES[rule](items, cards, 10**12)
    assert found is not None
    dearest = max(
        sum(item.read for item, place in zip(items, found, strict=True) if place == card)
        for card in range(cards)
    )
    assert dearest >= lowest_cost([item.read for item in items], cards) * (1 - 1e-9)


def test_big_tables_go_by_bytes_whatever_they_cost() -> None:
    # 500 to card 0, 400 to 1, 300 to 1 (700), 200 to 0 (700).
    big = [Item(size * MB, cost) for size, cost in [(200, 99), (500, 1), (300, 50), (400, 0)]]
    assert big_then_costly(big, 2, 1000 * MB) == [0, 0, 1, 1]


def test_the_rest_go_costliest_first_to_the_cheapest_card_that_fits() -> None:
    # The big one costs card 0 ten; 8 and 6 go to card 1, 4 to card 0, which is full then; 1 to card 1.
    mixed = [Item(300 * MB, 10), Item(50 * MB, 4), Item(50 * MB, 8), Item(50 * MB, 6), Item(50 * MB, 1)]
    assert big_then_costly(mixed, 2, 350 * MB) == [0, 0, 1, 1, 1]


def test_a_table_that_no_card_has_room_for_is_not_placed() -> None:
    assert big_then_costly([Item(200 * MB, 1)], 4, 199 * MB) is None


def test_costs_may_count_the_link() -> None:
    # Two tables that read little and send much: 8 x 50 + 10 each, against 300.
    tables = [Item(MB, 300, 0), Item(MB, 10, 50), Item(MB, 10, 50)]
    assert RULES["platform"](tables, 2, 10**9) == [0, 1, 1]
    assert RULES["platform and link"](tables, 2, 10**9) == [0, 0, 1]
