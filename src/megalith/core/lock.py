"""One process at a time in a folder: a lock that ends with its holder, however that ends.

    lock = FolderLock(folder, "is being trained")
    lock.acquire()      # or one sentence that names the process that holds it
    lock.release()

The system keeps the lock (flock), so nothing a killed process leaves behind stands in the way. The file says
who holds it and is gone when nobody does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from megalith.core.errors import StorageError, storage_errors

_NAME = ".lock"


class FolderLock:
    """A lock on a folder, which may be acquired several times by its holder; not by two threads."""

    def __init__(self, folder: Path, what: str) -> None:
        self.path, self._what = folder / _NAME, what
        self._file: int | None = None
        self._depth = 0

    def acquire(self) -> None:
        """Takes the lock, or says who has it. Makes the folder if there is none."""
        if self._depth == 0:
            with storage_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                while not self._try():
                    pass
        self._depth += 1

    def release(self) -> None:
        """Gives the lock back as often as it was taken; the last time the file goes, too."""
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            # Before the lock is free: what somebody else makes afterwards is not ours to remove.
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def _try(self) -> bool:
        """False if the file was removed by its last holder in the meantime."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(file)
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(
                    f"{self.path.parent} {self._what} by {holder}; wait until it ends, or stop it."
                ) from error
            raise
        if not _is_file(self.path, file):
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        self._file = file
        return True


def _holder(file: int) -> str:
    """The process that a lock file names; one that has just taken it may not have written yet."""
    try:
        content = json.loads(os.pread(file, 1000, 0))
        host = "" if content["host"] == socket.gethostname() else f" on {content['host']}"
        return f"process {int(content['process'])}{host}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"


def _is_file(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
