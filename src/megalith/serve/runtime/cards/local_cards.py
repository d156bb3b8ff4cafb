"""Cards that are threads of this process: for small models, for tests, and where nothing may be started."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from mmap import mmap
from pathlib import Path
from queue import SimpleQueue

from megalith.comm.memory_file import MemoryFile
from megalith.export.backends.base import ModelSource
from megalith.hardware.free_memory import resident_bytes
from megalith.serve.runtime.cards.card import OUTPUT_BYTES, PARTS_A_VERSION, Card, CardMaker, Notify
from megalith.serve.runtime.cards.load_pace import LoadPace
from megalith.serve.runtime.cards.served_part import ServedPart, VersionParts
from megalith.serve.runtime.cards.task import Task, TaskResult
from megalith.serve.runtime.cards.version_source import load_version
from megalith.serve.runtime.cards.worker import CardWorker


class LocalCard(Card):
    """A thread with a queue of tasks."""

    def __init__(
        self,
        number: int,
        place: int,
        versions: Mapping[int, VersionParts],
        worker: Callable[[mmap], CardWorker],
        notify: Notify,
    ) -> None:
        self._file = MemoryFile(OUTPUT_BYTES, "megalith-outputs")
        super().__init__(number, place, versions, self._file.memory)
        self.results: deque[TaskResult] = deque()
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._worker, self._notify = worker(self._file.memory), notify
        self._thread = threading.Thread(target=self._run, name=f"megalith-card-{place}", daemon=True)
        self._thread.start()

    @property
    def process(self) -> int:
        """This process."""
        return os.getpid()

    def send(self, task: Task) -> None:
        """To its queue."""
        self._queue.put(task)

    def stop(self) -> None:
        """After the task that it is at."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            self.results.append(self._worker.run(task))
            self._notify(self)


class LocalCards(CardMaker):
    """Starts threads that share what this process has loaded."""

    def __init__(self, rooms: mmap, notify: Notify) -> None:
        self._rooms, self._notify = rooms, notify
        self._sources: dict[int, ModelSource] = {}
        self._parts: dict[int, list[ServedPart]] = {}
        self._cards: dict[int, LocalCard] = {}

    def load(
        self, number: int, folder: Path, base: int | None, spec: VersionParts, share: float
    ) -> dict[str, int]:
        """Into the memory of this process."""
        before = None if base is None else self._sources[base]
        source, parts, count = load_version(folder, before, spec, LoadPace(share, time.sleep))
        self._sources[number], self._parts[number] = source, parts
        return count

    def unload(self, number: int) -> None:
        """Drops it; threads under way keep what they use."""
        self._sources.pop(number, None)
        self._parts.pop(number, None)

    def start(self, number: int, place: int, versions: Mapping[int, VersionParts]) -> Card:
        """A thread."""
        parts = {
            version * PARTS_A_VERSION + place: part
            for version in versions
            for place, part in enumerate(self._parts[version])
        }

        def worker(outputs: mmap) -> CardWorker:
            return CardWorker(self._rooms, outputs, parts, lambda peer, _: self._cards[peer].outputs)

        card = self._cards[number] = LocalCard(number, place, versions, worker, self._notify)
        return card

    def memory(self) -> dict[str, int]:
        """Of this process."""
        return {"front": resident_bytes() or 0}

    def close(self) -> None:
        """Ends the threads."""
        for card in self._cards.values():
            if card.alive:
                card.stop()
        self._cards.clear()
        self._sources.clear()
        self._parts.clear()
