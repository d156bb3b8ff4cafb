"""Whether a benchmark fits in the memory that is free."""

from __future__ import annotations

import re
from pathlib import Path

from megalith.core.errors import ConfigError
from megalith.core.units import format_bytes


def check_memory(what: str, need: int) -> int | None:
    """Bytes left beside `need`, with a reserve; None where the system does not say how much is free."""
    available = _available_bytes()
    if available is None:
        return None
    left = int(0.9 * available) - need
    if left < 0:
        raise ConfigError(
            f"{what} needs {format_bytes(need)} of memory and {format_bytes(available)} is free; pass fewer "
            "--rows or --tables."
        )
    return left


def _available_bytes() -> int | None:
    """Memory that can be taken without swapping; None where the system does not say."""
    try:
        information = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s*(\d+) kB", information, re.MULTILINE)
    return int(match[1]) * 1024 if match else None
