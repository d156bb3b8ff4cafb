"""Room in shared memory: blocks are given out from the lowest address that fits, and joined when they return.

There are at most a few hundred blocks at a time, so a sorted list of what is free is quick enough, and the
memory that was ever touched stays about as large as the most that was in use at once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

_LINE = 64


class Arena:
    """Blocks of a memory of `num_bytes`; calls from any thread."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._lock = threading.Lock()
        self._begins = [0]
        self._ends = [num_bytes]
        self._sizes: dict[int, int] = {}
        self.used = 0

    def take(self, num_bytes: int) -> int | None:
        """The offset of a block of whole cache lines, None where no gap is large enough."""
        size = max(_LINE, -(-num_bytes // _LINE) * _LINE)
        with self._lock:
            for place, (begin, end) in enumerate(zip(self._begins, self._ends, strict=True)):
                if end - begin < size:
                    continue
                if end - begin == size:
                    del self._begins[place], self._ends[place]
                else:
                    self._begins[place] = begin + size
                self._sizes[begin] = size
                self.used += size
                return begin
            return None

    def give_back(self, begin: int) -> None:
        """Frees a block that `take` gave."""
        with self._lock:
            size = self._sizes.pop(begin)
            self.used -= size
            end = begin + size
            place = bisect_left(self._begins, begin)
            after = place < len(self._begins) and self._begins[place] == end
            before = place > 0 and self._ends[place - 1] == begin
            if before and after:
                self._ends[place - 1] = self._ends[place]
                del self._begins[place], self._ends[place]
            elif before:
                self._ends[place - 1] = end
            elif after:
                self._begins[place] = begin
            else:
                self._begins.insert(place, begin)
                self._ends.insert(place, end)
