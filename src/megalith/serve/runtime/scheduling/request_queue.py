"""Requests that wait: by priority and then by age, each with its deadline. Under the scheduler's lock.

Requests of the engine itself, which warm and check a version, wait apart: one of them goes where no user's
request waits, and else after every `TURN` of these.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from megalith.serve.runtime.cards.task import MOST_ENTRIES
from megalith.serve.runtime.scheduling.work import Pending, ServedVersion

NEVER = float("inf")
TURN = 16
"""Requests of users that go before one of the background."""


class RequestQueue:
    """One queue for all cards. Requests that are answered while they wait leave it when they come up."""

    def __init__(self) -> None:
        self.count = self.samples = 0
        """Of requests that wait and have no answer."""
        self._heap: list[tuple[int, int, Pending]] = []
        self._deadlines: list[tuple[float, int, Pending]] = []
        self._background: deque[Pending] = deque()
        self._ahead = 0
        """Requests of users that went since the last of the background."""

    def __bool__(self) -> bool:
        return self.head() is not None

    def push(self, pending: Pending) -> None:
        """Lets a request wait, where it belongs by priority and age."""
        pending.queued = not pending.background
        if pending.background:
            self._background.append(pending)
            return
        heappush(self._heap, (pending.request.priority, pending.order, pending))
        self.count += 1
        self.samples += pending.entry.batch

    def watch(self, pending: Pending) -> None:
        """Notes the deadline of a request."""
        if pending.deadline is not None:
            heappush(self._deadlines, (pending.deadline, pending.order, pending))

    def background(self) -> Pending | None:
        """The next request of the background, where it is its turn."""
        while self._background and self._background[0].finished:
            self._background.popleft()
        if not self._background or (self._ahead < TURN and self.head() is not None):
            return None
        return self._background[0]

    def head(self) -> Pending | None:
        """The next request of a user that still wants an answer."""
        while self._heap and self._heap[0][2].finished:
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Pending:
        """Takes the next request out; there is one."""
        pending = self.head()
        assert pending is not None
        heappop(self._heap)
        self.leave(pending)
        return pending

    def leave(self, pending: Pending) -> None:
        """A request waits no more, because it runs or was answered."""
        if pending.queued:
            pending.queued = False
            self.count -= 1
            self.samples -= pending.entry.batch

    def gather(self, version: ServedVersion, max_batch: int) -> list[Pending]:
        """The next request, with those behind it that may run together with it: of the same version, and all
        with the user's features apart or none."""
        pendings = [self.pop()]
        self._ahead += 1
        samples, apart = pendings[0].entry.batch, pendings[0].entry.user_lengths_at >= 0
        while samples < max_batch and len(pendings) < MOST_ENTRIES:
            following = self.head()
            if following is None:
                break
            entry = following.entry
            other = following.version is not version or (entry.user_lengths_at >= 0) != apart
            if other or samples + entry.batch > max_batch:
                break
            pendings.append(self.pop())
            self._ahead += 1
            samples += entry.batch
        return pendings

    def take_background(self) -> list[Pending]:
        """The request that `background` gave."""
        self._ahead = 0
        return [self._background.popleft()]

    def expired(self, now: float) -> list[Pending]:
        """Requests whose deadline has passed, each once."""
        found = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].finished):
            found.append(heappop(self._deadlines)[2])
        return found

    def next_deadline(self) -> float:
        """The next of all that have no answer."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def waiting(self) -> set[Pending]:
        """All that are in it."""
        return {pending for _, _, pending in self._heap} | set(self._background)
