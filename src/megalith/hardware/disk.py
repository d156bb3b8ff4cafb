"""How fast a disk is for tables that lie on it: random blocks a second, and bytes a second in order.

`megalith.ops.stores.disk_probe` measures it through the queue that row pools use; here is what it finds, and
the file that remembers it (`$XDG_CACHE_HOME/megalith/disks.json`), by file system. What a shared disk gives
differs from minute to minute, so several measurements are kept: their medians are what it usually gives.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from megalith.core.files import write_atomic
from megalith.core.units import format_bytes, format_count

BLOCK_BYTES = 4096
"""A row on disk is read by so many bytes."""
_MAX_AGE_SECONDS = 24 * 3600.0
_REMEMBERED = 16
"""Measurements of a disk that are kept."""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Rates of one disk."""

    engine: str
    """io_uring or threads: what moved the blocks."""
    reads_per_second: float
    """Random reads of 4 KiB with a full queue."""
    read_bytes_per_second: float
    write_bytes_per_second: float
    """In order, in large pieces, and forced to disk at the end."""
    read_processor_seconds: float
    """What one random read takes of a core."""
    reads_range: tuple[float, float] | None = None
    """Random reads a second of the slowest and of the quickest of several measurements."""

    def shared_by(self, processes: int) -> DiskSpeed:
        """What each of some processes has that use the disk at once."""
        both = self.reads_range
        return replace(
            self,
            reads_per_second=self.reads_per_second / processes,
            read_bytes_per_second=self.read_bytes_per_second / processes,
            write_bytes_per_second=self.write_bytes_per_second / processes,
            reads_range=None if both is None else (both[0] / processes, both[1] / processes),
        )

    def to_dict(self) -> dict[str, Any]:
        """As a result file holds it."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{format_count(self.reads_per_second)} random reads a second ({self.engine}), in order "
            f"{format_bytes(self.read_bytes_per_second)}/s read and "
            f"{format_bytes(self.write_bytes_per_second)}/s written"
        )


class MeasuredSpeed(NamedTuple):
    """A measurement, and when it was made."""

    measured_at: float
    """Seconds since 1970."""
    speed: DiskSpeed


def usual_speed(speeds: Sequence[DiskSpeed]) -> DiskSpeed:
    """The medians of some measurements, and the range of their reads where there are several."""
    rates = [speed.reads_per_second for speed in speeds]
    return DiskSpeed(
        engine=speeds[-1].engine,
        reads_per_second=median(rates),
        read_bytes_per_second=median(speed.read_bytes_per_second for speed in speeds),
        write_bytes_per_second=median(speed.write_bytes_per_second for speed in speeds),
        read_processor_seconds=median(speed.read_processor_seconds for speed in speeds),
        reads_range=(min(rates), max(rates)) if len(rates) > 1 else None,
    )


def remembered_speeds(
    folder: Path, engine: str, max_age_seconds: float = _MAX_AGE_SECONDS
) -> list[MeasuredSpeed]:
    """What was measured of the file system of this folder in the last day, the oldest first."""
    entry = _entries().get(_key(folder, engine))
    found = []
    for measured in entry if isinstance(entry, list) else []:
        with suppress(KeyError, TypeError, ValueError):
            fields = dict(measured)
            at = float(fields.pop("measured_at"))
            if abs(time.time() - at) <= max_age_seconds:
                found.append(MeasuredSpeed(at, DiskSpeed(**fields)))
    return found


def remember_speed(folder: Path, engine: str, speed: DiskSpeed) -> None:
    """Adds a measurement for later runs; where it cannot be written, they measure again."""
    kept = [*remembered_speeds(folder, engine), MeasuredSpeed(time.time(), speed)]
    entries = _entries()
    entries[_key(folder, engine)] = [
        {**measured.speed.to_dict(), "measured_at": measured.measured_at} for measured in kept[-_REMEMBERED:]
    ]
    path = _file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(entries, indent=1) + "\n")


def _key(folder: Path, engine: str) -> str:
    """A file system, as this boot of the machine numbers it, and the engine that was asked for."""
    return f"{folder.stat().st_dev}:{engine}"


def _file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "megalith" / "disks.json"


def _entries() -> dict[str, Any]:
    with suppress(OSError, ValueError, RuntimeError):
        content = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    return {}
