"""How fast a disk is for tables that lie on it: random blocks a second, and bytes a second in order.

`megalith.ops.stores.disk_probe` measures it through the queue that row pools use; here is what it finds, and
the file that remembers it (`$XDG_CACHE_HOME/megalith/disks.json`), by file system, so that a run need not
measure again.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megalith.core.files import write_atomic
from megalith.core.units import format_bytes, format_count

BLOCK_BYTES = 4096
"""A row on disk is read by so many bytes."""
_MAX_AGE_SECONDS = 24 * 3600.0


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

    def to_dict(self) -> dict[str, Any]:
        """As a result file holds it."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{format_count(self.reads_per_second)} random reads a second ({self.engine}), in order "
            f"{format_bytes(self.read_bytes_per_second)}/s read and "
            f"{format_bytes(self.write_bytes_per_second)}/s written"
        )


def remembered_speed(
    folder: Path, engine: str, max_age_seconds: float = _MAX_AGE_SECONDS
) -> DiskSpeed | None:
    """What was measured of the file system of this folder, if it is not older than a day."""
    entry = _entries().get(_key(folder, engine))
    try:
        if not isinstance(entry, dict) or abs(time.time() - entry.pop("measured_at")) > max_age_seconds:
            return None
        return DiskSpeed(**entry)
    except (KeyError, TypeError):
        return None


def remember_speed(folder: Path, engine: str, speed: DiskSpeed) -> None:
    """Keeps a measurement for later runs; where it cannot be written, they measure again."""
    entries = _entries()
    entries[_key(folder, engine)] = {**speed.to_dict(), "measured_at": time.time()}
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
