"""Where tables go on a number of cards, and how many cards that takes.

The fewest cards that hold the tables make a replica; cards that would be left over join the replicas. More
cards a replica can be asked for: a request then ends sooner, and moves more between cards.
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.export.partition.prediction import HOST, RequestTimes, Setting
from megalith.export.partition.request_bytes import buffer_bytes, table_bytes
from megalith.export.partition.rules import BEST_OF, RULES, Item
from megalith.export.partition.served.model import ServedTable

SMALL_BYTES = 1 << 20
"""Tables of at most so many bytes, which the host's cache holds, stay there if their vectors are no larger
than the ids that a card would have to be sent."""


@dataclass(frozen=True, slots=True)
class CardPlacement:
    """Table i on card `card_of[i]` of each replica."""

    rule: str
    card_of: tuple[int, ...]
    cards: int
    replicas: int


class CardPartitioner:
    """Places the tables of one setting; `small_bytes` is what stays on the host."""

    def __init__(self, setting: Setting, small_bytes: int = SMALL_BYTES) -> None:
        self.setting, self.small_bytes = setting, small_bytes
        self.placed = [i for i, table in enumerate(setting.model.tables) if not self._stays(table)]
        self.sizes = [self._item(setting.model.tables[i]) for i in self.placed]

    def _item(self, table: ServedTable) -> Item:
        moved = table_bytes(table, self.setting.items, self.setting.moving)
        return Item(table.bytes, self.setting.line_bytes(table), moved.ids + moved.vectors)

    def _stays(self, table: ServedTable) -> bool:
        """Whether a table stays on the host."""
        moved = table_bytes(table, self.setting.items, self.setting.moving)
        return table.bytes <= self.small_bytes and moved.vectors <= moved.ids

    @property
    def memory_bytes(self) -> int:
        """Of a card, what tables and dense part may take."""
        return int(self.setting.machine.card.bytes * self.setting.assumed.memory_share)

    @property
    def dense_bytes(self) -> int:
        """Of the dense part on a card: weights, and buffers of the requests under way."""
        setting = self.setting
        buffers = setting.assumed.requests_in_flight * buffer_bytes(setting.model, setting.moving)
        return setting.model.dense.weight_bytes + buffers

    @property
    def table_room(self) -> int:
        """Of a card, what is left for tables."""
        return self.memory_bytes - self.dense_bytes

    def place(self, rule: str, cards: int) -> tuple[int, ...] | None:
        """The card of every table by one rule, None where they do not fit."""
        if self.table_room < 0:
            return None
        found = RULES[rule](self.sizes, cards, self.table_room)
        if found is None:
            return None
        card_of = [HOST] * len(self.setting.model.tables)
        for position, card in zip(self.placed, found, strict=True):
            card_of[position] = card
        return tuple(card_of)

    def best(self, cards: int) -> CardPlacement | None:
        """The placement whose slowest card is quickest, of the rules that a partition takes."""
        found = [(rule, self.place(rule, cards)) for rule in BEST_OF]
        placements = [
            CardPlacement(rule, card_of, cards, self.setting.machine.cards // cards)
            for rule, card_of in found
            if card_of is not None
        ]
        return min(placements, key=lambda one: slowest_card(self.times(one)), default=None)

    def times(self, placement: CardPlacement) -> RequestTimes:
        """What a placement costs."""
        return RequestTimes(self.setting, placement.card_of, placement.cards)

    def fits(self, cards: int) -> bool:
        """Whether a rule finds room on so many cards."""
        return any(self.place(rule, cards) is not None for rule in BEST_OF)

    def fewest(self, most: int) -> int | None:
        """The smallest number of cards, up to `most`, that holds the tables."""
        room = max(self.table_room, 1)
        first = max(1, -(-sum(size.bytes for size in self.sizes) // room))
        return next((cards for cards in range(first, most + 1) if self.fits(cards)), None)

    def choose(self, cards: int | None = None) -> CardPlacement | None:
        """On `cards` cards a replica, or on the fewest that hold the tables; None where none do."""
        if cards is not None:
            return self.best(cards)
        have = self.setting.machine.cards
        fewest = self.fewest(have)
        if fewest is None:
            return None
        # Cards that would be left over join the replicas.
        return self.best(have // (have // fewest)) or self.best(fewest)

    def counts(self) -> list[int]:
        """Numbers of cards a replica that leave the fewest idle, from the fewest that fit to all."""
        have = self.setting.machine.cards
        fewest = self.fewest(have)
        return (
            [] if fewest is None else sorted({have // (have // cards) for cards in range(fewest, have + 1)})
        )


def slowest_card(times: RequestTimes) -> float:
    """Ids in, lookups and vectors out on the card that takes longest."""
    return max(times.sparse(card) for card in range(times.cards))
