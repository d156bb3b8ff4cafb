"""`Engine`: what a server talks to. One a server; it owns cards, models and their versions.

    engine = Engine(EngineSettings(cards=2))
    engine.load("models/first")
    room = engine.reserve(num_bytes)            # a socket receives into room.memory
    engine.submit(room, InferRequest("first", inputs), done)
    engine.drain(); engine.close()

`done` is called once for every request that `submit` took, by the engine's thread: hand the outcome on, do
not work there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megalith.serve.failures import BadRequestError, ShuttingDownError
from megalith.serve.request import InferRequest, ModelDescription
from megalith.serve.runtime.cards.card import OUTPUT_BYTES
from megalith.serve.runtime.event_loop import EventLoop
from megalith.serve.runtime.fleet import Fleet
from megalith.serve.runtime.memory.rooms import RequestRoom, Rooms
from megalith.serve.runtime.recorded import RecentRequests, Replay
from megalith.serve.runtime.repository import LoadReport, Repository
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.runtime.scheduling.work import Done, Pending, ServedVersion
from megalith.serve.settings import EngineSettings

__all__ = ["Engine", "EngineSettings", "InferRequest", "LoadReport", "Pending", "RequestRoom"]

Says = Callable[[str], None]


class Engine:
    """Models on cards; every method may be called from any thread."""

    def __init__(self, settings: EngineSettings | None = None, says: Says = lambda sentence: None) -> None:
        """`says` gets a sentence for the operator now and then: a card was lost, a version takes so much."""
        self.settings = settings or EngineSettings()
        self.started = time.time()
        self._loop = EventLoop(self._after_each)
        self._scheduler = Scheduler(self.settings, self._loop.wake)
        self._rooms = Rooms(
            self.settings.active + self.settings.queued,
            self.settings.room_bytes,
            self.settings.request_bytes,
            self._retry_after,
        )
        self._fleet = Fleet(self.settings, self._rooms, self._scheduler, self._loop, says)
        self._recorder = RecentRequests(self.settings.recorded)
        replay = Replay(self._rooms, self._scheduler, self.settings.load_share)
        self._repository = Repository(
            self.settings, self._fleet, self._scheduler, self._recorder, replay, says
        )
        self._draining = self._closed = False
        self._closing = threading.Lock()
        self._loop.start()

    def reserve(self, num_bytes: int, head_bytes: int = 0) -> RequestRoom:
        """Room for the body of one request, to receive into. What follows its first `head_bytes` begins at a
        cache line. OverloadedError where as many requests are active and queued as may be."""
        if self._draining:
            raise ShuttingDownError("The server is shutting down; send the request to another.")
        return self._rooms.reserve(num_bytes, head_bytes)

    def submit(self, room: RequestRoom, request: InferRequest, done: Done) -> Pending:
        """Takes a request on; `done` is called once with its Answer or its RequestError. A request that is
        not taken is refused here by raising. The room is the engine's from now on, in both cases."""
        try:
            pending = self._taken(room, request, done)
            self._recorder.saw(room, request)
            while not self._scheduler.submit(pending):
                # A newer version has taken over since.
                pending = self._taken(room, request, done)
        except BaseException:
            room.release()
            raise
        return pending

    def _taken(self, room: RequestRoom, request: InferRequest, done: Done) -> Pending:
        if self._draining:
            raise ShuttingDownError("The server is shutting down; send the request to another.")
        version = self._repository.find(request.model, request.version)
        entry = version.check.entry(request, room)
        if entry.batch * version.widest > OUTPUT_BYTES // 4:
            raise BadRequestError(f"A request of {entry.batch:,} samples is too large; send fewer.")
        order = self._scheduler.next_order()
        return Pending(request, room, entry, version, done, order, self._scheduler.cancel)

    def load(
        self, folder: Path | str, name: str | None = None, version: str | None = None, **options: Any
    ) -> LoadReport:
        """Serves a frozen model, or a newer version of one that is served; returns when it answers requests.

        `folder` is a frozen model or a delta. A newer version is loaded beside the old one, warmed and
        checked, and takes over at once; see `Repository.load` for options and for what is refused.
        """
        if self._draining:
            raise ShuttingDownError("The server is shutting down; it loads no more models.")
        return self._repository.load(Path(folder), name, version, **options)

    def unload(self, name: str, version: str | None = None) -> None:
        """Serves a model, or one version of it, no more; requests under way are answered first."""
        self._repository.unload(name, version)

    def models(self) -> dict[str, ModelDescription]:
        """What is served, by name."""
        return self._repository.models()

    def manifest(self, name: str, version: str | None = None) -> ServedVersion:
        """A version that is served, its manifest among it; UnknownModelError where there is none."""
        return self._repository.find(name, version)

    def statistics(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Counts since the start, by model and version."""
        return self._repository.statistics()

    def status(self, memory: bool = True) -> dict[str, Any]:
        """Cards, queue, memory and how models lie on cards: one JSON object. Without `memory` it is cheap."""
        scheduler = self._scheduler
        with scheduler.lock:
            queue = {
                "active": scheduler.active,
                "queued": scheduler.queue.count,
                "rooms": self._rooms.taken,
                "room_bytes": self._rooms.used_bytes,
                "most_active": self.settings.active,
                "most_queued": self.settings.queued,
            }
        return {
            "ready": self.ready(),
            "draining": self._draining,
            "uptime_seconds": time.time() - self.started,
            "queue": queue,
            **self._fleet.status(memory),
            "models": self._repository.status(),
        }

    def ready(self) -> bool:
        """Whether requests are taken and some card can answer them."""
        return not self._draining and self._repository.ready()

    def drain(self, timeout: float | None = None) -> bool:
        """Takes no more requests and waits for those under way; whether all were answered in time."""
        self._draining = True
        until = None if timeout is None else time.monotonic() + timeout
        return self._rooms.wait_empty(until)

    def close(self) -> None:
        """Ends cards and threads. Requests without an answer get ShuttingDownError."""
        with self._closing:
            if self._closed:
                return
            self._draining = self._closed = True
            self._scheduler.fail_all()
            self._repository.close()
            self._fleet.close()
            self._loop.close()
            self._scheduler.deliver()
            self._rooms.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after_each(self) -> float:
        until = min(self._scheduler.due(), self._fleet.due())
        self._scheduler.deliver()
        return until

    def _retry_after(self) -> float:
        """Until about half of the queue has gone."""
        scheduler, cards = self._scheduler, max(1, len(self._scheduler.cards))
        return max(0.05, 0.5 * (scheduler.queue.count + scheduler.active) * scheduler.service_seconds / cards)
