"""Rooms of requests: where a socket writes a body and cards read it, without a copy between.

The number of rooms is what bounds an engine: one more than are allowed is refused before a byte is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from megalith.comm.memory_file import MemoryFile
from megalith.serve.failures import BadRequestError, OverloadedError
from megalith.serve.runtime.memory.arena import Arena

_LINE = 64


class RequestRoom:
    """Memory for the body of one request. It is free again once the request was answered and no card reads
    it any more; who never submits it calls `release`."""

    __slots__ = ("_holders", "_rooms", "_start", "memory", "num_bytes", "offset")

    def __init__(self, rooms: Rooms, start: int, offset: int, num_bytes: int) -> None:
        self._rooms, self._start = rooms, start
        self._holders = 1
        self.offset, self.num_bytes = offset, num_bytes
        self.memory: memoryview = memoryview(rooms.file.memory)[offset : offset + num_bytes]
        """To `recv_into`."""

    def hold(self) -> None:
        """Another user of the memory, such as a card that reads it."""
        with self._rooms.lock:
            self._holders += 1

    def release(self) -> None:
        """One user less; the last frees the room."""
        with self._rooms.lock:
            self._holders -= 1
            if self._holders:
                return
        self._rooms.free(self._start, self)


class Rooms:
    """All rooms of an engine, in one shared memory."""

    def __init__(
        self, most: int, room_bytes: int, request_bytes: int, retry_after: Callable[[], float]
    ) -> None:
        self.file = MemoryFile(room_bytes, "megalith-requests")
        self.lock = threading.Lock()
        self._empty = threading.Condition(self.lock)
        self.taken = 0
        self._most, self._request_bytes, self._retry_after = most, request_bytes, retry_after
        self._arena = Arena(room_bytes)

    def reserve(self, num_bytes: int, head_bytes: int = 0, *, beyond: bool = False) -> RequestRoom:
        """A room of `num_bytes`, laid so that what follows the first `head_bytes` begins at a cache line.
        `beyond` is for who may have one where all are taken."""
        if num_bytes < 0 or num_bytes > self._request_bytes:
            raise BadRequestError(
                f"A request of {num_bytes:,} bytes is above the limit of {self._request_bytes:,}; "
                "send fewer samples."
            )
        with self.lock:
            if self.taken >= self._most and not beyond:
                raise OverloadedError(
                    f"{self._most} requests are active or queued, as many as are allowed; try again later.",
                    self._retry_after(),
                )
            self.taken += 1
        lead = -head_bytes % _LINE
        start = self._arena.take(num_bytes + lead)
        if start is None:
            with self.lock:
                self.taken -= 1
            raise OverloadedError(
                f"Bodies of requests take all of {self._arena.num_bytes:,} bytes; try again later.",
                self._retry_after(),
            )
        return RequestRoom(self, start, start + lead, num_bytes)

    def free(self, start: int, room: RequestRoom) -> None:
        """Takes the memory of a room back; called by the room."""
        room.memory = memoryview(b"")
        self._arena.give_back(start)
        with self.lock:
            self.taken -= 1
            if not self.taken:
                self._empty.notify_all()

    def wait_empty(self, until: float | None) -> bool:
        """Waits until no room is taken; False where the time, as `time.monotonic` counts, came first."""
        with self.lock:
            while self.taken:
                if not self._empty.wait(None if until is None else max(0.0, until - time.monotonic())):
                    return not self.taken
            return True

    @property
    def used_bytes(self) -> int:
        """Of rooms that are taken."""
        return self._arena.used

    def close(self) -> None:
        """Lets go of the memory."""
        self.file.close()
