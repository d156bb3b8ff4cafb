"""A card as the scheduler sees it, and who makes them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.cards.task import Task
from megalith.serve.runtime.memory.arena import Arena

if TYPE_CHECKING:
    from megalith.serve.runtime.scheduling.work import Work

PARTS_A_VERSION = 256
"""Numbers that a version has for its parts: 0 is the whole or the dense part, the others its partitions."""
OUTPUT_BYTES = 1 << 30
"""Of a card's memory for outputs; pages are taken when they are written."""


class Card(ABC):
    """A card that takes tasks; state that is the scheduler's is under the scheduler's lock."""

    def __init__(self, number: int, place: int, versions: Mapping[int, VersionParts], outputs: mmap) -> None:
        self.number, self.place = number, place
        """`number` is never used again; `place` is the card's position among those of an engine."""
        self.versions = frozenset(versions)
        self.outputs = outputs
        self.arena = Arena(len(outputs))
        self.outputs_descriptor = -1
        self.tasks: dict[int, Work | None] = {}
        """Under way, by number; None is one that only asks for a sign."""
        self.generation = 0
        self.only: int | None = None
        """While set, it takes tasks of this version alone: one that is being checked."""
        self.last_used = self.load = 0
        """`load` is samples under way."""
        self.born = self.progress = time.monotonic()
        """When it last gave a sign."""
        self.alive = True
        self.retired = False
        """Takes no more tasks; ends when those under way are done."""
        self.done_tasks = 0
        self.busy_ns = 0

    @property
    @abstractmethod
    def process(self) -> int:
        """Its process id."""

    @abstractmethod
    def send(self, task: Task) -> None:
        """Hands a task over; never waits."""

    @abstractmethod
    def stop(self) -> None:
        """Has it end; a process is told so, and watched until it has."""


class CardMaker(ABC):
    """Loads versions and starts cards that have them. Called from one thread at a time."""

    @abstractmethod
    def load(
        self, number: int, folder: Path, base: int | None, spec: VersionParts, share: float
    ) -> dict[str, int]:
        """Loads a version; its bytes by what they are for. A delta needs the number of its base. `share` is
        that of a core's time which it may take."""

    @abstractmethod
    def unload(self, number: int) -> None:
        """Frees a version; cards that have it keep it until they end."""

    @abstractmethod
    def start(self, number: int, place: int, versions: Mapping[int, VersionParts]) -> Card:
        """A card that is ready for tasks of these versions."""

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """Resident bytes, each page counted once: of what is shared, and of each process."""

    @abstractmethod
    def close(self) -> None:
        """Ends everything."""


Notify = Callable[[Card], None]
"""Called, from any thread, when a card has results or has ended."""
