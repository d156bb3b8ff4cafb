"""Requests kept to warm and check the next version of a model with: a copy of one a second, a few of each."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.export.backends.inputs import ScoreRequest
from megalith.serve.failures import RequestError
from megalith.serve.request import Answer, InferRequest, TensorView
from megalith.serve.runtime.memory.rooms import RequestRoom, Rooms
from megalith.serve.runtime.scheduling.scheduler import Scheduler
from megalith.serve.runtime.scheduling.work import Pending, ServedVersion

_LARGEST = 16 << 20
"""Bytes of a body that is kept."""
_EVERY_SECONDS = 1.0
_LONGEST_PAUSE = 1.0
_TYPES = {torch.float32: "FP32", torch.int32: "INT32", torch.int64: "INT64"}


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request with its body."""

    body: bytes
    inputs: Mapping[str, TensorView]


def recorded_tensors(request: ScoreRequest) -> KeptRequest:
    """A request of tensors as one that was received."""
    body, views = bytearray(), {}
    for name, tensor in request._asdict().items():
        if isinstance(tensor, Tensor):
            body += b"\0" * (-len(body) % 64)
            content = tensor.contiguous().numpy().tobytes()
            views[name] = TensorView(len(body), len(content), _TYPES[tensor.dtype], tuple(tensor.shape))
            body += content
    return KeptRequest(bytes(body), views)


class RecentRequests:
    """The last requests of every model, at most one a second."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[str, deque[KeptRequest]] = {}
        self._next: dict[str, float] = {}

    def saw(self, room: RequestRoom, request: InferRequest) -> None:
        """A request came whose body is in its room."""
        if not self._most or room.num_bytes > _LARGEST:
            return
        now = time.monotonic()
        if now < self._next.get(request.model, 0.0):
            return
        with self._lock:
            self._next[request.model] = now + _EVERY_SECONDS
            kept = self._kept.setdefault(request.model, deque(maxlen=self._most))
            kept.append(KeptRequest(bytes(room.memory), dict(request.inputs)))

    def kept(self, model: str) -> list[KeptRequest]:
        """Of one model, the oldest first."""
        with self._lock:
            return list(self._kept.get(model, ()))


class Replay:
    """Runs recorded requests on a version, whether requests can find it yet or not; nothing is counted.

    They go behind requests of users. Between two of them there is a pause by what the last one took, so that
    they have no more than `share` of the time of a card.
    """

    def __init__(
        self, rooms: Rooms, scheduler: Scheduler, share: float = 1.0, seconds: float = 300.0
    ) -> None:
        self._rooms, self._scheduler, self._seconds = rooms, scheduler, seconds
        self._share = share

    def __call__(self, version: ServedVersion, recorded: KeptRequest, *, alone: bool = False) -> Answer:
        """Its answer; a failure is raised. `alone` is where nothing is served yet: it does not pause."""
        answer = self._answer(version, recorded)
        if not alone:
            computed = (answer.timings.input_ns + answer.timings.compute_ns) / 1e9
            time.sleep(min(_LONGEST_PAUSE, computed * (1 / self._share - 1)))
        return answer

    def _answer(self, version: ServedVersion, recorded: KeptRequest) -> Answer:
        outcome: queue.SimpleQueue[Answer | RequestError] = queue.SimpleQueue()
        room = self._rooms.reserve(len(recorded.body), beyond=True)
        try:
            room.memory[:] = recorded.body
            request = InferRequest(version.model, recorded.inputs, deadline=time.monotonic() + self._seconds)
            entry = version.check.entry(request, room)
            order, cancel = self._scheduler.next_order(), self._scheduler.cancel
            pending = Pending(request, room, entry, version, outcome.put, order, cancel, background=True)
        except BaseException:
            room.release()
            raise
        self._scheduler.submit(pending)
        found = outcome.get()
        if isinstance(found, RequestError):
            raise found
        return found
