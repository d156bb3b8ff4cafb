"""The C allocator, set for messages of megabytes that come and go."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 64 << 20
_ARENAS = 2


def keep_freed_memory() -> None:
    """Has freed memory kept for the next message, up to a bound, rather than given back and zeroed anew.

    gRPC allocates every message. By default the largest go back to the system at once, and the pages of the
    next one are cleared by the kernel: a third of the CPU time of a request of 700 KB. Where the allocator is
    not glibc's nothing happens.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for setting, value in (
            (_MMAP_THRESHOLD, _KEPT_BYTES >> 1),
            (_TRIM_THRESHOLD, _KEPT_BYTES),
            (_ARENA_MAX, _ARENAS),
        ):
            library.mallopt(setting, value)
