"""Candidates as processes of their own, each under a memory limit where the system lets us set one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from megalith.core.errors import MegalithError

_GROUPS = ((Path("/sys/fs/cgroup"), "memory.max"), (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"))
"""Where control groups are made, and the file of a group that holds its limit: versions 2 and 1."""


class MemoryLimit:
    """A control group whose processes share so many bytes, pages of files among them."""

    def __init__(self, name: str, limit_bytes: int, groups: Sequence[tuple[Path, str]] = _GROUPS) -> None:
        self.folder: Path | None = None
        self.method = "none: no control group could be made"
        for root, setting in groups:
            folder = root / f"megalith-{os.getpid()}-{name}"
            try:
                folder.mkdir()
                # A group has the file from the start; in any other folder, writing would only make one.
                with (folder / setting).open("r+", encoding="ascii") as limit:
                    limit.write(str(limit_bytes))
            except OSError:
                with suppress(OSError):
                    folder.rmdir()
                continue
            self.folder, self.method = folder, f"control group, {setting}"
            return

    def add(self, process: int) -> None:
        """Puts a process under the limit."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(process), encoding="ascii")

    def close(self) -> None:
        """Removes the group; its processes must have ended."""
        if self.folder is not None:
            with suppress(OSError):
                self.folder.rmdir()


class TierProcess:
    """A candidate in a process of its own, ready once every row was touched."""

    def __init__(self, name: str, settings: dict[str, Any], limit_bytes: int | None) -> None:
        self.name = name
        self._limit = None if limit_bytes is None else MemoryLimit(name, limit_bytes)
        self.limit = {"bytes": limit_bytes, "method": self._limit.method if self._limit else "none"}
        command = [sys.executable, "-m", "megalith.bench.tiers.worker", json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._limit is not None:
            self._limit.add(self._process.pid)
        self.fill_seconds = self._answer()["fill_seconds"]

    def run(self, first: int, last: int, dense_part: bool = False) -> dict[str, Any]:
        """Trains batches [first, last) of the stream, from some time on with dense layers; what it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{first} {last} {int(dense_part)}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process, which removes its files."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._limit is not None:
            self._limit.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise MegalithError(
                f"The candidate '{self.name}' ended with code {code}; its messages are above. "
                "Where a limit on memory ended it, give --cache less or --limit more."
            )
        found: dict[str, Any] = json.loads(line)
        return found
