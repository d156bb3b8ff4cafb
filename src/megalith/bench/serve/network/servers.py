"""Servers as processes of their own: started, waited for, their CPU time read, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.core.errors import MegalithError

_TICKS = os.sysconf("SC_CLK_TCK")
_PATIENCE_SECONDS = 600


@dataclass(slots=True)
class RunningPeer:
    """A server that answers."""

    process: subprocess.Popen[str]
    ports: dict[str, int]

    def cpu_seconds(self) -> float:
        """CPU time of the process and of all that it started, so far."""
        return sum(_cpu_seconds(process) for process in process_tree(self.process.pid))

    def resident_bytes(self) -> int:
        """Memory of its own, of all its processes."""
        return sum(_resident(process) for process in process_tree(self.process.pid))

    def proportional_bytes(self) -> int:
        """Memory of all its processes, of shared pages each its share."""
        return sum(_proportional(process) for process in process_tree(self.process.pid))


@contextmanager
def started_server(command: Sequence[str], name: str) -> Iterator[RunningPeer]:
    """A server that prints one JSON object with its ports once it is ready."""
    words = [sys.executable, *command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise MegalithError(f"The server {name} did not start; its message is above.")
        yield RunningPeer(process, {key: port for key, port in json.loads(line).items() if port is not None})
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Ends a server and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue
    process.wait(timeout=20)
    if process.stdout is not None:
        process.stdout.close()


def process_tree(process: int) -> list[int]:
    """A process and its descendants."""
    found = [process]
    for each in found:
        for thread in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in thread.read_text().split()]
            except OSError:
                continue
    return found


def wait_for(ready: Any, what: str) -> None:
    """Asks until it is so."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise MegalithError(f"{what} is not ready after {_PATIENCE_SECONDS} s; look at its messages.")
        time.sleep(0.05)


def _cpu_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, and those of children that have ended.
    return sum(int(fields[place]) for place in (11, 12, 13, 14)) / _TICKS


def _resident(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
