"""Nameless memory (memfd) that one process writes and others map, handed over by descriptor.

Nothing stays behind however a process ends. Who only reads gets a descriptor that cannot be mapped to write.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path


class MemoryFile:
    """Memory of this process that others may map; pages are taken when they are first written."""

    def __init__(self, num_bytes: int, name: str = "megalith") -> None:
        self.num_bytes = num_bytes
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, num_bytes)
            self.memory = mmap.mmap(self.descriptor, num_bytes)
        except BaseException:
            os.close(self.descriptor)
            raise

    def read_only_descriptor(self) -> int:
        """A new descriptor of the same memory, for who must not write; the caller closes it."""
        path = Path(f"/proc/self/fd/{self.descriptor}")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def used_bytes(self) -> int:
        """Bytes of pages that were taken."""
        return os.fstat(self.descriptor).st_blocks * 512

    def close(self) -> None:
        """Lets go of it here; views that are still held keep their memory. A second call does nothing."""
        if self.descriptor < 0:
            return
        os.close(self.descriptor)
        self.descriptor = -1
        # Where views are out, the mapping ends with the last of them.
        with suppress(BufferError):
            self.memory.close()

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            os.close(self.descriptor)


def map_descriptor(descriptor: int, *, writable: bool = False) -> mmap.mmap:
    """The memory behind a descriptor that another process handed over."""
    size = os.fstat(descriptor).st_size
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=access)
