"""Memory that this process could still get: what the machine has left, and what limits allow.

A control group may hold less than the machine (containers, systemd, batch systems); so may `ulimit -v`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that this process could still allocate; None where the system does not say.

    `root` is where /proc and /sys are.
    """
    information = _read(root / "proc/meminfo")
    free = _field(information, "MemAvailable")
    if free is None:
        return None
    left = [1024 * free, *_control_groups(root)]
    # Tables that are pushed out to swap are slow, but they do not end the process.
    available = min(left) + 1024 * (_field(information, "SwapFree") or 0)
    limit = _address_space_left() if root == _ROOT else None
    return max(0, available if limit is None else min(available, limit))


def resident_bytes() -> int | None:
    """Memory that this process has now; None where the system does not say."""
    fields = _read(_ROOT / "proc/self/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None


def _control_groups(root: Path) -> Iterator[int]:
    """What is left in each control group that the process is in, the outer ones included."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        # Inside a container the path may be that of the host, of which only the root is to be seen.
        for depth in range(len(parts) + 1):
            group = base.joinpath(*parts[:depth])
            limit, used = _read(group / names[0]).strip(), _read(group / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                cached = _field(_read(group / "memory.stat"), names[2]) or 0
                yield max(0, int(limit) - int(used) + cached)


def _address_space_left() -> int | None:
    """What `ulimit -v` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(_read(Path("/proc/self/statm")).split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, IndexError, ValueError, OSError):
        return None
    return None if limit == resource.RLIM_INFINITY else limit - used


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^{name}:?\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
