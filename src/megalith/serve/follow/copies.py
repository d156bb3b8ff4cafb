"""`LocalCopies`: the folder on this machine in which a server keeps what it has of a stream.

Servers of one machine share a folder. Each has one of its own in it, locked while it lives, so that whoever
starts next removes what a killed server has left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from megalith.core.errors import storage_errors

_LOCK, _SERVER = "lock", "server-"
_LINGERS_SECONDS = 10.0
"""Requests that were read a moment ago still open schema and vocabulary of the version before."""


class LocalCopies:
    """Names for files and folders; all are gone with the process."""

    def __init__(self, shared: Path | None = None) -> None:
        shared = shared or Path(tempfile.gettempdir()) / f"megalith-follow-{os.getuid()}"
        with storage_errors(shared):
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_left(shared)
            folder = shared / f".{_SERVER}{uuid.uuid4().hex[:12]}"
            folder.mkdir()
            self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Under this name others look for locks.
            self.folder = folder.rename(shared / folder.name.removeprefix("."))
        self._unwanted: list[tuple[float, Path]] = []

    def path(self, name: str) -> Path:
        """A name that nothing has yet."""
        return self.folder / f"{name}-{uuid.uuid4().hex[:8]}"

    def remove_later(self, path: Path) -> None:
        """Removes a file or folder, once requests under way have let go of it."""
        self._unwanted.append((time.monotonic() + _LINGERS_SECONDS, path))

    def sweep(self) -> None:
        """Removes what nobody wants any more."""
        now = time.monotonic()
        for when, path in list(self._unwanted):
            if when <= now:
                remove(path)
                self._unwanted.remove((when, path))

    def close(self) -> None:
        """Removes all."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def remove(path: Path) -> None:
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_left(shared: Path) -> None:
    """Removes folders of servers that have ended."""
    for folder in shared.glob(f"{_SERVER}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # Someone is removing it.
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
