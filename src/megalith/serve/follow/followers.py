"""`Followers`: all streams that a server follows, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from megalith.serve.engine import Engine
from megalith.serve.follow.copies import LocalCopies
from megalith.serve.follow.follower import StreamFollower
from megalith.serve.follow.settings import FollowSettings
from megalith.serve.follow.status import FollowStatus

_END_SECONDS = 5.0


class Followers:
    """Takes the versions there are, then looks for newer ones until it is closed."""

    def __init__(
        self, settings: FollowSettings, engine: Engine, says: Callable[[str], None] = lambda sentence: None
    ) -> None:
        """Reads nothing yet."""
        self._settings, self._ends = settings, threading.Event()
        self._copies = [LocalCopies(settings.folder) for _ in settings.uris]

        def tell(sentence: str) -> None:
            if not self._ends.is_set():
                says(sentence)

        self._followers = [
            StreamFollower(uri, engine, settings, copies, tell)
            for uri, copies in zip(settings.uris, self._copies, strict=True)
        ]
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Has the engine serve what there is, and goes on by itself."""
        for follower in self._followers:
            follower.look()
            thread = threading.Thread(target=self._follow, args=(follower,), name="follow", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def statuses(self) -> Sequence[FollowStatus]:
        """How far each is."""
        return [follower.status for follower in self._followers]

    def ready(self) -> bool:
        """Whether every stream has given a version to serve."""
        return all(status.version for status in self.statuses)

    def close(self) -> None:
        """Ends the threads, and removes what was kept on this machine."""
        self._ends.set()
        for thread in self._threads:
            # One that waits for a store that does not answer ends with the process.
            thread.join(_END_SECONDS)
        for copies in self._copies:
            copies.close()

    def __enter__(self) -> Followers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self, follower: StreamFollower) -> None:
        while not self._ends.is_set():
            if not follower.look():
                self._ends.wait(self._settings.every_seconds)
