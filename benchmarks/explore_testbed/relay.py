"""A long link in user space: frames read from one tap device are written to the other, a delay later.

It stands in for `tc netem` on kernels that are built without it; the rate of the link stays with the kernel
(tbf on each tap). It makes both taps, says "ready" on standard output, and takes a new delay in seconds from
each line of standard input, "0.02"; it ends with its input.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_PR_SET_TIMERSLACK, _PR_SET_PDEATHSIG, _SIGKILL = 29, 1, 9
# Waking for every single frame would take processor time from the ranks. On links longer than a millisecond,
# frames are looked at in small batches, so often.
_SHORT_SECONDS, _BATCH_SECONDS = 1e-3, 0.5e-3
_LARGEST_FRAME = 65_600
# Frames read in a row before due ones are looked at again.
_READ_AT_ONCE = 64


def open_tap(name: str) -> int:
    """A new tap device; it goes when the descriptor is closed."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def be_prompt() -> None:
    """A link waits for no processor: real-time priority, no timer slack; and it ends with its parent."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))


def read_frames(tap: int, queue: deque[tuple[float, bytes]], delay_seconds: float) -> None:
    """Takes waiting frames from a tap into the queue, each with the moment when it is due."""
    for _ in range(_READ_AT_ONCE):
        try:
            frame = os.read(tap, _LARGEST_FRAME)
        except BlockingIOError:
            return
        queue.append((time.monotonic() + delay_seconds, frame))


def write_due_frames(tap: int, queue: deque[tuple[float, bytes]]) -> None:
    """Writes the frames whose delay has passed."""
    while queue and queue[0][0] <= time.monotonic():
        try:
            os.write(tap, queue.popleft()[1])
        except OSError:
            # The device is not up yet, or already going: the frame is lost as on a cut cable.
            continue


def main(names: list[str]) -> None:
    """Makes the taps and relays until standard input ends."""
    taps = [open_tap(name) for name in names]
    be_prompt()
    print("ready", flush=True)
    queues: tuple[deque[tuple[float, bytes]], ...] = (deque(), deque())
    delay_seconds = 0.0
    control = sys.stdin.fileno()
    while True:
        for tap, queue in zip(reversed(taps), queues, strict=True):
            write_due_frames(tap, queue)
        due = [queue[0][0] for queue in queues if queue]
        if due and delay_seconds > _SHORT_SECONDS:
            time.sleep(_BATCH_SECONDS)
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        readable, _, _ = select.select([*taps, control], [], [], wait)
        for tap, queue in zip(taps, queues, strict=True):
            if tap in readable:
                read_frames(tap, queue, delay_seconds)
        if control in readable:
            lines = os.read(control, 4096).decode()
            if not lines:
                return
            delay_seconds = float(lines.split()[-1])
            print("ready", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:3])
