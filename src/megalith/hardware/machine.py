"""What this machine has: processor, memory, disk, system. Needs nothing outside the standard library.

Every result file holds one, so that a number can be told apart from the machine it was measured on.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Vector and matrix instructions that kernels choose between, as /proc/cpuinfo spells them.
_SIMD_FLAGS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine; counts are what this process may use, not what the hardware has."""

    cpu: str
    cores: int
    memory_bytes: int | None
    simd: tuple[str, ...]
    disk: str
    """File system and device of the working folder."""
    disk_free_bytes: int
    system: str
    python: str

    def to_dict(self) -> dict[str, Any]:
        """As a result file holds it."""
        return {**asdict(self), "simd": list(self.simd)}


def this_machine(folder: Path | None = None) -> Machine:
    """This machine; `folder` says which disk is meant, the current folder's if left out."""
    existing = _existing(folder or Path.cwd())
    information = _read(Path("/proc/cpuinfo"))
    return Machine(
        cpu=_cpu_name(information),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        simd=_simd(information),
        disk=_disk(existing),
        disk_free_bytes=shutil.disk_usage(existing).free,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, and the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]):
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    return allowed


def memory_bytes() -> int | None:
    """Memory that this process may use: the machine's, or the limit of its control group."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    return min(physical, int(limit)) if limit.isdigit() else physical


def _cpu_name(information: str) -> str:
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", information, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _simd(information: str) -> tuple[str, ...]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", information, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return tuple(flag for flag in _SIMD_FLAGS if flag in flags)


def _disk(folder: Path) -> str:
    """Type and device of the file system that holds `folder`: the longest mount point above it."""
    best, description = "", "unknown"
    for line in _read(Path("/proc/mounts")).splitlines():
        device, mount, kind, *_ = line.split()
        inside = str(folder) == mount or str(folder).startswith(mount.rstrip("/") + "/")
        # Of two file systems on one mount point the later lies on top.
        if inside and len(mount) >= len(best):
            best, description = mount, f"{kind} on {device}"
    return description


def _existing(folder: Path) -> Path:
    """The nearest folder above that exists; a result may go where nothing has been made yet."""
    folder = folder.resolve()
    return folder if folder.exists() else _existing(folder.parent)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
