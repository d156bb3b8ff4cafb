"""Which card takes a task: the least loaded, ties to the one that was used least recently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megalith.serve.runtime.cards.card import Card
from megalith.serve.runtime.scheduling.work import ServedVersion


def holders(cards: Iterable[Card], version: ServedVersion) -> list[Card]:
    """Cards that have a version; of several generations of cards, those of the newest that has it."""
    found = [
        card
        for card in cards
        if card.alive
        and not card.retired
        and version.number in card.versions
        and card.only in (None, version.number)
    ]
    if not found:
        return found
    newest = max(card.generation for card in found)
    return [card for card in found if card.generation == newest]


def least_loaded(cards: Iterable[Card]) -> Card | None:
    """The card with the fewest samples under way."""
    return min(cards, key=lambda card: (card.load, len(card.tasks), card.last_used), default=None)


def with_room(cards: Iterable[Card], depth: int) -> list[Card]:
    """Those that may take another task."""
    return [card for card in cards if len(card.tasks) < depth]


def sparse_cards(
    cards: Sequence[Card], num_partitions: int, depth: int, degraded: bool
) -> list[Card | None] | None:
    """The card of every partition; None among them is one that is lost, None as a whole: wait.

    Partition p lies on cards whose place leaves p; where all of these are lost another card reads its rows
    in the host's memory, unless degraded answers are allowed.
    """
    chosen: list[Card | None] = []
    for partition in range(num_partitions):
        own = [card for card in cards if card.place % num_partitions == partition]
        if not own and degraded:
            chosen.append(None)
            continue
        card = least_loaded(with_room(own or cards, depth))
        if card is None:
            return None
        chosen.append(card)
    return chosen
