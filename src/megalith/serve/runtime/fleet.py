"""All cards of an engine, by generation, and the watch over them.

Cards never change what they have: to serve another set of versions a new generation of cards is started, and
the one before ends once nothing waits for it. A card that ends by itself, or has work and gives no sign for
`hang_seconds`, is fenced: killed, its memory never used again, its requests queued again, and another card
started in its place.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from megalith.serve.runtime.cards.card import Card, CardMaker
from megalith.serve.runtime.cards.local_cards import LocalCard, LocalCards
from megalith.serve.runtime.cards.process_card import ProcessCard
from megalith.serve.runtime.cards.process_cards import ProcessCards
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.event_loop import EventLoop
from megalith.serve.runtime.memory.rooms import Rooms
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.settings import EngineSettings

Says = Callable[[str], None]
_RETRY_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds before a card is started again that was lost soon after its start."""


class Fleet:
    """Starts generations of cards, takes their results in, and replaces those that are lost."""

    def __init__(
        self, settings: EngineSettings, rooms: Rooms, scheduler: Scheduler, loop: EventLoop, says: Says
    ) -> None:
        self.settings, self._scheduler, self._loop, self._says = settings, scheduler, loop, says
        self._numbers = itertools.count(1)
        self.generation = 0
        self.lost_cards = 0
        self._only: int | None = None
        self._wanted: dict[int, Mapping[int, VersionParts]] = {}
        """Generations that are served, and the versions they have."""
        self._loads: dict[int, tuple[Path, int | None, VersionParts]] = {}
        """What the maker of cards has loaded, should it have to load it again."""
        self._unloaded: set[int] = set()
        self._pauses: dict[int, float] = {}
        self._starts: list[tuple[float, int, int]] = []
        """When to start which place of which generation again."""
        self._last_look = time.monotonic()
        self._closing = False
        self.maker: CardMaker
        if settings.cards:
            self.processes = ProcessCards(rooms, loop, self._server_ended)
            self.maker = self.processes
            loop.call(self.processes.launch)
        else:
            self.maker = LocalCards(rooms.file.memory, self._notified)

    def start_generation(self, versions: Mapping[int, VersionParts], only: int | None) -> int:
        """New cards that have these versions; with `only` they take tasks of one version, until `open`."""
        self.generation += 1
        generation = self.generation
        self._wanted[generation] = dict(versions)
        self._only = only
        try:
            for place in range(max(1, self.settings.cards) if versions else 0):
                card = self.maker.start(next(self._numbers), place, versions)
                card.generation, card.only = generation, only
                self._join([card])
        except BaseException:
            self.end(generation)
            raise
        return generation

    def open(self, generation: int) -> None:
        """Lets cards of a generation take tasks of all versions that they have."""
        with self._scheduler.lock:
            self._only = None
            for card in self._scheduler.cards:
                if card.generation == generation:
                    card.only = None
        self._scheduler.joined([])

    def resident(self) -> int:
        """Bytes of all processes of the engine, of shared pages each its share."""
        return sum(self.maker.memory().values())

    def _join(self, cards: list[Card]) -> None:
        """Lets cards take tasks."""
        for card in cards:
            if isinstance(card, ProcessCard):
                self._loop.call(partial(self._watch, card))
        self._scheduler.joined(cards)

    def end(self, generation: int) -> None:
        """Ends all cards of a generation, which have nothing under way that is wanted."""
        self._wanted.pop(generation, None)
        with self._scheduler.lock:
            cards = [card for card in self._scheduler.cards if card.generation == generation]
        for card in cards:
            if isinstance(card, LocalCard):
                card.stop()
                self._scheduler.lost(card)
        # The engine's thread alone touches descriptors of cards.
        self._loop.run(partial(self._end, cards))

    def load(self, number: int, folder: Path, base: int | None, parts: VersionParts) -> dict[str, int]:
        """Loads a version, for cards that are started afterwards; slowly, while there are others."""
        share = self.settings.load_share if any(self._wanted.values()) else 1.0
        self._loads[number] = folder, base, parts
        try:
            return self.maker.load(number, folder, base, parts, share)
        except BaseException:
            del self._loads[number]
            raise

    def unload(self, number: int) -> None:
        """Frees a version that no card has."""
        # The base of another version is read again, should the process that loads ever end.
        self._unloaded.add(number)
        while gone := (self._unloaded & set(self._loads)) - {base for _, base, _ in self._loads.values()}:
            for each in gone:
                del self._loads[each]
        self._unloaded &= set(self._loads)
        self.maker.unload(number)

    def status(self, memory: bool = True) -> dict[str, Any]:
        """What each card does; reading the memory of processes takes some milliseconds."""
        with self._scheduler.lock:
            cards = [
                {
                    "card": card.place,
                    "generation": card.generation,
                    "process": card.process,
                    "state": "busy" if card.load else "idle",
                    "tasks": len(card.tasks),
                    "samples": card.load,
                    "done_tasks": card.done_tasks,
                    "busy_seconds": card.busy_ns / 1e9,
                }
                for card in self._scheduler.cards
            ]
        return {
            "cards": cards,
            "lost_cards": self.lost_cards,
            "threads_a_card": self.settings.card_threads,
            "memory": self.maker.memory() if memory else {},
        }

    def close(self) -> None:
        """Ends all cards."""
        self._closing = True
        for generation in list(self._wanted):
            self.end(generation)
        self._loop.run(partial(self._end, self._scheduler.cards))
        self._loop.run(self.maker.close)

    def due(self) -> float:
        """Fences cards that hang and starts those that are missing; when it wants to look again."""
        now, bound = time.monotonic(), self.settings.hang_seconds
        if not self.settings.cards or self._closing:
            return now + 3600
        late, self._last_look = now - self._last_look > bound, now
        for card in list(self._scheduler.cards):
            if late:
                # This process was stopped itself; cards had no chance to be heard.
                card.progress = now
            elif now - card.progress > bound:
                if isinstance(card, ProcessCard) and card.ending:
                    continue
                if card.tasks:
                    self._fence(card)
                else:
                    self._scheduler.ask_for_sign(card)
        ready = [start for start in self._starts if start[0] <= now]
        self._starts = [start for start in self._starts if start[0] > now]
        for _, generation, place in ready:
            self._start_again(generation, place)
        return min([now + bound / 4, *(start[0] for start in self._starts)])

    def _notified(self, card: Card) -> None:
        self._loop.call(partial(self._take_local, card))

    def _take_local(self, card: Card) -> None:
        assert isinstance(card, LocalCard)
        while card.results:
            self._scheduler.take_result(card, card.results.popleft())

    def _watch(self, card: ProcessCard) -> None:
        self._loop.watch(card.result_event, partial(self._take, card))
        self._loop.watch(card.end_event, partial(self._ended, card))

    def _take(self, card: ProcessCard) -> None:
        for result in card.results():
            self._scheduler.take_result(card, result)

    def _end(self, cards: list[Card]) -> None:
        """Kills cards; what they had is let go of when each has ended, for which nothing waits here."""
        with self._scheduler.lock:
            for card in cards:
                card.retired = True
        for card in cards:
            if card.alive and isinstance(card, ProcessCard):
                card.expected_end = True
                card.stop()
                if self._closing:
                    card.wait_end()
                    self._ended(card)

    def _fence(self, card: Card) -> None:
        self._says(
            f"Card {card.place} (process {card.process}) has given no sign for "
            f"{self.settings.hang_seconds:g} s and is ended."
        )
        assert isinstance(card, ProcessCard)
        with self._scheduler.lock:
            card.retired = True
        card.stop()

    def _ended(self, card: ProcessCard) -> None:
        if not card.alive:
            return
        # What it had announced before its end counts.
        self._take(card)
        self._loop.forget(card.result_event)
        self._loop.forget(card.end_event)
        self._scheduler.lost(card)
        card.release()
        if card.expected_end or card.generation not in self._wanted or self._closing:
            return
        self.lost_cards += 1
        lived = time.monotonic() - card.born
        pause = 0.0 if lived > _LONGEST_PAUSE else min(_LONGEST_PAUSE, 2 * self._pauses.get(card.place, 0.05))
        self._pauses[card.place] = pause
        self._says(f"Card {card.place} (process {card.process}) is lost; another is started in its place.")
        self._starts.append((time.monotonic() + pause, card.generation, card.place))
        self._loop.wake()

    def _start_again(self, generation: int, place: int) -> None:
        versions = self._wanted.get(generation)
        if versions is None or self._closing:
            return
        made: Future[Card] = Future()

        def ready(made: Future[Card]) -> None:
            try:
                card = made.result()
            except Exception as error:
                self._says(f"Card {place} cannot be started: {error}")
                self._starts.append((time.monotonic() + _RETRY_PAUSE, generation, place))
                self._loop.wake()
                return
            card.generation = generation
            if generation not in self._wanted:
                self._give_up(card)
                return
            with self._scheduler.lock:
                card.only = self._only if generation == self.generation else None
            self._join([card])

        made.add_done_callback(ready)
        self.processes.start_soon(next(self._numbers), place, versions, made)

    def _give_up(self, card: Card) -> None:
        """A card that was started too late for its generation."""
        assert isinstance(card, ProcessCard)
        card.expected_end = True
        self._loop.watch(card.end_event, partial(self._ended, card))
        card.stop()

    def _server_ended(self) -> None:
        """All cards end with that process. What they had is loaded by another, and they are started again."""
        if self._closing:
            return
        self._says("The process that starts cards has ended, and all cards with it; all is loaded again.")
        self.processes.launch()
        for number, (folder, base, parts) in sorted(self._loads.items()):
            self.processes.load_soon(number, folder, base, parts)
        for number in self._unloaded & set(self._loads):
            self.processes.unload_soon(number)
