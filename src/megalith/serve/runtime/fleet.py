"""All cards of an engine, by generation, and the watch over them.

Cards never change what they have: to serve another set of versions a new generation of cards is started, and
the one before ends once nothing waits for it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megalith.serve.runtime.cards.card import Card, CardMaker
from megalith.serve.runtime.cards.local_cards import LocalCard, LocalCards
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.event_loop import EventLoop
from megalith.serve.runtime.memory.rooms import Rooms
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.settings import EngineSettings

Says = Callable[[str], None]


class Fleet:
    """Starts generations of cards and takes their results in."""

    def __init__(
        self, settings: EngineSettings, rooms: Rooms, scheduler: Scheduler, loop: EventLoop, says: Says
    ) -> None:
        self.settings, self._scheduler, self._loop, self._says = settings, scheduler, loop, says
        self._numbers = itertools.count(1)
        self.generation = 0
        self.maker: CardMaker = LocalCards(rooms.file.memory, self._notified)
        self._changing = threading.Lock()

    def start_generation(self, versions: Mapping[int, VersionParts]) -> list[Card]:
        """New cards that have these versions; they get no tasks before `join`."""
        self.generation += 1
        cards = []
        for place in range(max(1, self.settings.cards)):
            card = self.maker.start(next(self._numbers), place, versions)
            card.generation = self.generation
            cards.append(card)
        return cards

    def join(self, cards: list[Card]) -> None:
        """Lets cards take tasks."""
        self._scheduler.joined(cards)

    def end(self, cards: list[Card]) -> None:
        """Ends cards that have nothing under way, or whose tasks are no longer wanted."""
        for card in cards:
            card.stop()
            self._scheduler.lost(card)
        self._loop.wake()

    def due(self) -> float:
        """Looks after cards; when it wants to do so again."""
        return time.monotonic() + 3600

    def status(self) -> dict[str, Any]:
        """What each card does."""
        with self._scheduler.lock:
            cards = [
                {
                    "card": card.place,
                    "generation": card.generation,
                    "process": card.process,
                    "state": "busy" if card.tasks else "idle",
                    "tasks": len(card.tasks),
                    "samples": card.load,
                    "done_tasks": card.done_tasks,
                    "busy_seconds": card.busy_ns / 1e9,
                }
                for card in self._scheduler.cards
            ]
        return {"cards": cards, "threads_a_card": self.settings.card_threads}

    def close(self) -> None:
        """Ends all cards."""
        self.maker.close()

    def load(self, number: int, folder: Path, base: int | None, spec: VersionParts) -> dict[str, int]:
        """Loads a version, for cards that are started afterwards."""
        return self.maker.load(number, folder, base, spec)

    def unload(self, number: int) -> None:
        """Frees a version that no card has."""
        self.maker.unload(number)

    def _notified(self, card: Card) -> None:
        self._loop.call(lambda: self._take(card))

    def _take(self, card: Card) -> None:
        assert isinstance(card, LocalCard)
        while card.results:
            self._scheduler.take_result(card, card.results.popleft())
