"""Measures a disk through the queue that row pools read and write with; about a second.

    disk_speed(Path("rows"))      the median of what this and earlier runs measured

The file is removed at the end. It is read past the page cache, but a disk may have a cache of its own and a
virtual one that of its host: rates of a file this small are upper bounds for tables of hundreds of gigabytes.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from megalith.core.errors import StorageError
from megalith.hardware.disk import BLOCK_BYTES, DiskSpeed, remember_speed, remembered_speeds, usual_speed
from megalith.ops import native

FILE_BYTES = 256 << 20
_PIECE_BYTES = 2 << 20
"""Of reads and writes in order."""
_FIRST_READS = 2048
_MAX_READS = 100_000
_ROUNDS = 4
_APART_SECONDS = 60.0
"""A measurement that is not older counts as of now: another one would tell the same."""
_DEPTH, _THREADS = 256, 32
"""As `tiered_rows.DiskSettings` has them."""


class _Transfers(NamedTuple):
    """What one call moves, in the order of the native fields."""

    file_bytes: int
    block_bytes: int
    transfers: int
    write: bool
    in_order: bool
    io_uring: bool
    depth: int
    threads: int = _THREADS
    seed: int = 1


def disk_speed(folder: Path, engine: str = "io_uring") -> DiskSpeed:
    """What the disk under a folder usually gives: measured now, with what was measured in the last day.

    A disk that others use too gives more in one second than in another, so no single one decides.
    """
    known = remembered_speeds(folder, engine)
    speeds = [measured.speed for measured in known]
    if not known or abs(time.time() - known[-1].measured_at) > _APART_SECONDS:
        speeds.append(measure_disk(folder, engine))
        remember_speed(folder, engine, speeds[-1])
    return usual_speed(speeds)


def measure_disk(
    folder: Path, engine: str = "io_uring", seconds: float = 0.4, file_bytes: int | None = None
) -> DiskSpeed:
    """Writes a file of `file_bytes`, reads it at random for about `seconds`, and once in order."""
    file_bytes = file_bytes or FILE_BYTES
    free = shutil.disk_usage(folder).free
    if free < 2 * file_bytes:
        raise StorageError(
            f"{folder} has {free >> 20} MiB free, and measuring its disk takes {2 * file_bytes >> 20}; "
            "free some."
        )
    pieces = max(1, file_bytes // _PIECE_BYTES)
    piece = min(_PIECE_BYTES, file_bytes)
    wants_ring = engine == "io_uring"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".disk-probe-") as file:
        path = Path(file.name)
        os.truncate(path, file_bytes)
        written, ring = _move(path, _Transfers(file_bytes, piece, pieces, True, True, wants_ring, 8))
        few = _Transfers(file_bytes, BLOCK_BYTES, _FIRST_READS, False, False, wants_ring, _DEPTH)
        spent, _ = _move(path, few)
        reads = int(min(_MAX_READS, max(_FIRST_READS, _FIRST_READS * seconds / spent / _ROUNDS)))
        many = few._replace(transfers=reads)
        # The best of some rounds: whatever else runs only slows them down.
        busy = time.process_time()
        spent = min(_move(path, many._replace(seed=2 + number))[0] for number in range(_ROUNDS))
        busy = time.process_time() - busy
        whole = _Transfers(file_bytes, piece, pieces, False, True, wants_ring, 8)
        in_order = min(_move(path, whole)[0] for _ in range(2))
    return DiskSpeed(
        engine="io_uring" if ring else "threads",
        reads_per_second=reads / spent,
        read_bytes_per_second=pieces * piece / in_order,
        write_bytes_per_second=pieces * piece / written,
        read_processor_seconds=busy / (_ROUNDS * reads),
    )


def _move(path: Path, transfers: _Transfers) -> tuple[float, bool]:
    """Seconds, and whether io_uring was used."""
    fields = (ctypes.c_int64 * len(transfers))(*map(int, transfers))
    seconds, ring = ctypes.c_double(), ctypes.c_int32()
    native.library().mg_disk_probe(
        os.fsencode(path), ctypes.addressof(fields), ctypes.addressof(seconds), ctypes.addressof(ring)
    )
    return max(seconds.value, 1e-9), bool(ring.value)
