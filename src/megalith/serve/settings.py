"""How an engine runs: cards, bounds and times."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from megalith.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """All settings of an engine."""

    cards: int = 1
    """Card processes, 1 to 64; 0 computes on threads of this process."""
    threads: int | None = None
    """Of a card; None shares the cores out."""
    active: int = 48
    """Most requests that cards have at a time."""
    queued: int = 200
    """Most requests that wait beside them."""
    depth: int = 2
    """Most batches that a card has at a time: one that it runs, and one to go on with."""
    max_batch: int = 256
    """Samples up to which waiting requests are run together."""
    max_delay: float = 0.0
    """Seconds that a small batch may wait for company while cards are at work; else none waits."""
    split: int = 128
    """A request of at least twice so many samples is shared out over cards that have nothing to do."""
    room_bytes: int = 1 << 30
    """Most bytes of request bodies at a time; memory is taken only for what is used."""
    request_bytes: int = 256 << 20
    """Most bytes of one request's body."""
    card_memory: int | None = None
    """Bytes that a card has for tables and dense part; None holds any model whole."""
    partitions: int | None = None
    """Cards that a model's tables are cut over; None: as few as hold them, one where it fits a card."""
    pooled: Literal["float32", "float16"] = "float32"
    """What pooled vectors pass between cards as."""
    memory_limit: int | None = None
    """Most bytes of memory while a version is loaded; None is what the machine has."""
    load_share: float = 0.25
    """Share of a core's time that loading and checking a version takes while others are served."""
    hang_seconds: float = 5.0
    """A card that has work and gives no sign for so long is fenced."""
    attempts: int = 3
    """Cards that a request may be tried on, if they die of it."""
    degraded: bool = False
    """Answer without the tables of a lost card, and say so, rather than wait for it."""
    recorded: int = 16
    """Requests that are kept to warm and check the next version with."""
    calibration_bound: float = 0.1
    """Share by which the mean score of recorded requests may differ from the version before."""
    live_bound: float = math.inf
    """The same of versions that are followed; scores that are no numbers are beyond any."""

    def __post_init__(self) -> None:
        if not 0 <= self.cards <= 64:
            raise ConfigError(f"cards is {self.cards}; use 0 to 64.")
        for name in ("active", "depth", "max_batch", "split", "attempts", "room_bytes", "request_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if self.partitions is not None and not 1 <= self.partitions <= max(1, self.cards):
            raise ConfigError(f"partitions is {self.partitions}; use 1 to the number of cards.")
        if self.queued < 0 or self.recorded < 0:
            raise ConfigError("queued and recorded must be 0 or more.")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; use 1 or more.")
        if not 0 < self.load_share <= 1:
            raise ConfigError(f"load_share is {self.load_share}; use more than 0 and at most 1.")
        if not self.hang_seconds > 0 or not self.max_delay >= 0:
            raise ConfigError("hang_seconds must be above 0, max_delay 0 or more.")
        if not self.live_bound > 0 or not self.calibration_bound > 0:
            raise ConfigError("calibration_bound and live_bound must be above 0.")

    @property
    def card_threads(self) -> int:
        """Threads of a card."""
        if self.threads is not None:
            return self.threads
        return max(1, len(os.sched_getaffinity(0)) // max(1, self.cards))
