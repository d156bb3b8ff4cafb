"""Who else used the processor: measurements beside other busy processes are repeated, whatever they say."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Of /proc/stat: user, nice, system, steal. Interrupts are left out: our own packets are among them.
_BUSY_FIELDS = (1, 2, 3, 8)
_USER_FIELD, _SYSTEM_FIELD = 11, 12


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """A moment, and the processor seconds used until then: by everyone, and by the given processes."""

    moment: float
    all_seconds: float
    own_seconds: float

    @classmethod
    def now(cls, processes: Sequence[int]) -> ProcessorUse:
        """The seconds used until now."""
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
        everyone = sum(int(fields[index]) for index in _BUSY_FIELDS)
        own = sum(_ticks_of(process) for process in (*processes, os.getpid()))
        return cls(time.monotonic(), everyone / _TICKS_A_SECOND, own / _TICKS_A_SECOND)

    def others_since(self, before: ProcessorUse) -> float:
        """Cores that others kept busy, on average."""
        used = (self.all_seconds - before.all_seconds) - (self.own_seconds - before.own_seconds)
        return max(0.0, used / (self.moment - before.moment))


def _ticks_of(process: int) -> int:
    # The name, in brackets, may hold spaces; numbers are counted from behind it.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[_USER_FIELD]) + int(fields[_SYSTEM_FIELD])
