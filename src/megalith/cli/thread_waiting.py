"""How threads wait for each other between the parts of an operator: spinning, or asleep beside other work.

Threads that spin wake soonest. On a machine whose cores are busy already they spin away the time of the one
they wait for: a training step can take many times as long. The library of threads reads its policy once, when
torch is imported, so it is chosen before that, and only where the user has not.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from megalith.hardware.machine import usable_cores

POLICY = "OMP_WAIT_POLICY"
_CHOSEN_BY_USER = (POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
BUSY = 1.25
"""Processes a core, over the last minute, above which a machine counts as busy."""


def choose_waiting(environ: MutableMapping[str, str] = os.environ) -> None:
    """Has threads sleep while they wait, where other programs take the cores now and did in the last
    minute."""
    if any(name in environ for name in _CHOSEN_BY_USER):
        return
    try:
        fields = Path("/proc/loadavg").read_text(encoding="ascii").split()
        minute, running = float(fields[0]), int(fields[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return
    if is_busy(minute, running - 1, usable_cores()):
        environ[POLICY] = "passive"


def is_busy(minute: float, others: int, cores: int) -> bool:
    """Whether cores are taken: by the average of the last minute, and by what runs now beside us. Our own
    command before this one counts in the first alone."""
    return minute > BUSY * cores and others >= cores
