"""Requests on their way through an engine: one that waits, and some that run together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.export.manifest import ModelManifest
from megalith.serve.failures import RequestError
from megalith.serve.request import Answer, InferRequest
from megalith.serve.runtime.cards.served_part import VersionParts
from megalith.serve.runtime.cards.task import Entry
from megalith.serve.runtime.memory.rooms import RequestRoom
from megalith.serve.runtime.scheduling.request_check import RequestCheck
from megalith.serve.runtime.scheduling.statistics import VersionStatistics

if TYPE_CHECKING:
    from megalith.serve.runtime.cards.card import Card

Done = Callable[[Answer | RequestError], None]


@dataclass(eq=False, slots=True)
class ServedVersion:
    """A version of a model that is loaded, or about to be."""

    number: int
    """Among all versions of all models that an engine ever had."""
    model: str
    version: str
    folder: str
    weights_file: Path
    manifest: ModelManifest
    check: RequestCheck
    spec: VersionParts
    statistics: VersionStatistics
    widths: tuple[int, ...] = ()
    """Bytes of a sample's pooled vectors, by partition."""
    bytes: dict[str, int] = field(default_factory=dict)
    inputs_folder: str = ""
    """Where its schema and vocabulary are: of a delta without them, the folder of its base."""
    limits: dict[str, float] | None = None
    """How far the outputs of its own samples may be, where that is known; a delta has its base's."""
    waiting: int = 0
    """Requests that were submitted and have no answer yet."""
    retired: bool = False
    """Takes no more requests; set under the scheduler's lock."""

    @property
    def widest(self) -> int:
        """Bytes of a sample in the largest of its outputs."""
        return max(4 * len(self.check.tasks), *self.widths, 0)


class Pending:
    """A request that was submitted and has no answer yet."""

    __slots__ = (
        *(
            "_cancel",
            "attempts",
            "background",
            "deadline",
            "done",
            "entry",
            "finished",
            "order",
            "queued",
            "request",
        ),
        *("room", "started_ns", "version"),
    )

    def __init__(
        self,
        request: InferRequest,
        room: RequestRoom,
        entry: Entry,
        version: ServedVersion,
        done: Done,
        order: int,
        cancel: Callable[[Pending], None],
        background: bool = False,
    ) -> None:
        """One in the `background` is of the engine itself: behind those of users, and not counted."""
        self.request, self.room, self.entry, self.version, self.done = request, room, entry, version, done
        self.order, self.background = order, background
        self.deadline = request.deadline
        self.started_ns = time.monotonic_ns()
        self.attempts = 0
        self.queued, self.finished = True, False
        self._cancel = cancel

    def cancel(self) -> None:
        """Asks for no answer any more: `done` is called with a RequestCancelledError, unless it was called
        already. From any thread."""
        self._cancel(self)


class TaskState(NamedTuple):
    """A task of some work that a card has."""

    card: Card
    stage: int
    """WHOLE, LOOKUPS or DENSE."""
    entries: tuple[Entry, ...]
    out_at: int
    partition: int = 0


class Work:
    """Requests that run together, and the tasks they take."""

    __slots__ = (
        *(
            "began",
            "card",
            "checked_ns",
            "computed",
            "dead",
            "degraded",
            "outputs",
            "pendings",
            "pooled",
            "samples",
        ),
        *("tasks", "verdicts", "version"),
    )

    def __init__(self, version: ServedVersion, pendings: list[Pending]) -> None:
        self.version, self.pendings = version, pendings
        self.samples = sum(pending.entry.samples for pending in pendings)
        self.tasks: dict[int, TaskState] = {}
        """Under way, by number."""
        self.pooled: dict[int, tuple[Card, int]] = {}
        """By partition, where its vectors lie."""
        self.outputs: list[NDArray[np.float32]] = []
        """[tasks, samples] of each request."""
        self.verdicts: list[RequestError | None] = [None] * len(pendings)
        """Of each request that was refused, why."""
        self.dead = self.degraded = False
        self.began = self.checked_ns = self.computed = self.card = 0
