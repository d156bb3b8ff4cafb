"""Which card each table goes to: the rule of the first platform, and others to compare it with.

The rule: tables above 100 MB, largest first, to the card with the fewest bytes; the rest, costliest first, to
the cheapest card that fits. The platform counts as cost what lookups read. A table with few ids and a wide
vector reads little and sends much, so a second form of the rule counts what crosses the link as well. Costs
are bytes, so that where tables go does not depend on how fast a card is. Tables that stay on the host are not
among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

BIG_BYTES = 100_000_000
"""A table above this is placed by its bytes."""


LINK_WEIGHT = 8
"""A byte over the link as bytes of lines read: memory of cards is 5 to 13 times as fast as their link."""


class Item(NamedTuple):
    """A table to place."""

    bytes: int
    read: float
    """Bytes of lines that the lookups of a request touch."""
    sent: float = 0.0
    """Bytes of ids and pooled vectors that cross the link."""

    @property
    def moved(self) -> float:
        """Both, as bytes of lines."""
        return self.read + LINK_WEIGHT * self.sent


Cost = Callable[[Item], float]


Rule = Callable[[Sequence[Item], int, int], "list[int] | None"]
"""Items, cards and bytes that a card has for tables -> the card of each item; None where they do not fit."""


def read_cost(item: Item) -> float:
    """What the platform balances."""
    return item.read


def moved_cost(item: Item) -> float:
    """With what crosses the link."""
    return item.moved


class _Cards:
    """Bytes and cost of each card so far."""

    def __init__(self, items: Sequence[Item], cards: int, capacity: int, cost: Cost = read_cost) -> None:
        self.items, self.capacity = items, capacity
        self.bytes, self.cost = [0] * cards, [0.0] * cards
        self.cost_of = [cost(item) for item in items]
        self.card_of = [-1] * len(items)

    def fits(self, item: int, card: int) -> bool:
        """Whether the card has room for the item."""
        return self.bytes[card] + self.items[item].bytes <= self.capacity

    def place(self, item: int, card: int | None) -> bool:
        """Puts the item there; False where there is no card for it."""
        if card is None or not self.fits(item, card):
            return False
        self.bytes[card] += self.items[item].bytes
        self.cost[card] += self.cost_of[item]
        self.card_of[item] = card
        return True

    def emptiest(self) -> int:
        """The card with the fewest bytes."""
        return min(range(len(self.bytes)), key=lambda card: self.bytes[card])

    def cheapest(self, item: int) -> int | None:
        """Of the cards with room for the item, the one with the least cost."""
        room = [card for card in range(len(self.bytes)) if self.fits(item, card)]
        return min(room, key=lambda card: self.cost[card], default=None)


def big_then_costly(
    items: Sequence[Item], cards: int, capacity: int, cost: Cost = read_cost
) -> list[int] | None:
    """The rule.

    >>> big_then_costly([Item(300_000_000, 1), Item(200_000_000, 1), Item(10, 9), Item(10, 8)], 2, 10**9)
    [0, 1, 0, 1]
    """
    state = _Cards(items, cards, capacity, cost)
    order = range(len(items))
    big = sorted((i for i in order if items[i].bytes > BIG_BYTES), key=lambda i: -items[i].bytes)
    rest = sorted((i for i in order if items[i].bytes <= BIG_BYTES), key=lambda i: -state.cost_of[i])
    placed = all(state.place(i, state.emptiest()) for i in big)
    return state.card_of if placed and all(state.place(i, state.cheapest(i)) for i in rest) else None


def round_robin(items: Sequence[Item], cards: int, capacity: int) -> list[int] | None:
    """In the order given, each to the next card that has room."""
    state = _Cards(items, cards, capacity)
    for item in range(len(items)):
        turns = [(item + step) % cards for step in range(cards)]
        if not state.place(item, next((card for card in turns if state.fits(item, card)), None)):
            return None
    return state.card_of


def bytes_only(items: Sequence[Item], cards: int, capacity: int) -> list[int] | None:
    """Largest first to the card with the fewest bytes, small tables too."""
    state = _Cards(items, cards, capacity)
    order = sorted(range(len(items)), key=lambda i: -items[i].bytes)
    return state.card_of if all(state.place(i, state.emptiest()) for i in order) else None


def cost_only(items: Sequence[Item], cards: int, capacity: int) -> list[int] | None:
    """Costliest first to the cheapest card that fits, big tables too."""
    state = _Cards(items, cards, capacity, moved_cost)
    order = sorted(range(len(items)), key=lambda i: (-state.cost_of[i], -items[i].bytes))
    return state.card_of if all(state.place(i, state.cheapest(i)) for i in order) else None


RULES: dict[str, Rule] = {
    "platform": big_then_costly,
    "platform and link": partial(big_then_costly, cost=moved_cost),
    "round robin": round_robin,
    "bytes only": bytes_only,
    "cost only": cost_only,
}
BEST_OF = ("platform", "platform and link")
"""The rules of which a partition takes the one whose slowest card is quicker."""


def lowest_cost(costs: Sequence[float], cards: int) -> float:
    """A cost that the dearest card has at least, wherever tables go: the mean, and the dearest table."""
    return max(sum(costs) / cards, max(costs, default=0.0))
