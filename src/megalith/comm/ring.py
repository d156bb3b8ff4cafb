"""A ring of slots in shared memory from one process to another, with an eventfd that counts what was written.

A reader takes as many slots as the eventfd says, never more: the system calls on both sides order memory, so
there is nothing atomic here, and a writer that is killed in the middle of a slot has never announced it.
Writers know from elsewhere that a slot is free: each end keeps its own count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from mmap import mmap


class SlotRing:
    """One end of a ring of `num_slots` slots of `slot_bytes`, from byte `begin` of a memory."""

    def __init__(self, memory: mmap, begin: int, slot_bytes: int, num_slots: int, event: int) -> None:
        self.num_slots, self.event = num_slots, event
        self._slots = [
            memoryview(memory)[begin + slot * slot_bytes : begin + (slot + 1) * slot_bytes]
            for slot in range(num_slots)
        ]
        self._next = 0

    def next_slot(self) -> memoryview:
        """The slot that is written next; `announce` hands it over."""
        return self._slots[self._next % self.num_slots]

    def announce(self) -> None:
        """Tells the reader of one more slot."""
        self._next += 1
        os.eventfd_write(self.event, 1)

    def read(self) -> Iterator[memoryview]:
        """Waits for slots (or not, where the eventfd does not block) and goes through them."""
        try:
            count = os.eventfd_read(self.event)
        except BlockingIOError:
            return
        for _ in range(count):
            yield self._slots[self._next % self.num_slots]
            self._next += 1

    def release(self) -> None:
        """Lets go of the memory."""
        for slot in self._slots:
            slot.release()
        self._slots = []
