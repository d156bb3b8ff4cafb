"""Start, end and arrival of everything in a step, row by row.

Each row is the maximum of what its devices finished and what has come to them, plus seconds. Where devices
share a link, how long messages queue is not known beforehand: rows are followed with the queues of the time
before, messages are put in the order of the time they became ready, and again, until the queues stay the
same. A step in which every queue is as its messages make it is what the event simulation finds, to the last
bit, since times lie on the grid of `op_table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from megalith.explore.pipeline.simulation.program import Message
from megalith.explore.pipeline.simulation.wavefront.links import LinkOrder
from megalith.explore.pipeline.simulation.wavefront.rows import Wavefronts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MOST_ROUNDS = 20
_MOST_CHANGED = 0.25
"""Queues on shared links that have not settled by then, or where so large a share of the messages changed at
once, as on links that are always full, are left to the event simulation."""


class RowTimes:
    """When every operation of a step starts and ends, and when its messages arrive."""

    def __init__(
        self, wavefronts: Wavefronts, type_seconds: list[float], messages: list[list[Message | None]]
    ) -> None:
        self.wavefronts = wavefronts
        self._type_seconds = type_seconds
        self.seconds = np.array(type_seconds)[wavefronts.op_types]
        shape = len(messages), wavefronts.rows, wavefronts.devices
        self.starts, self.ends = np.zeros(shape[1:]), np.zeros(shape[1:])
        self._taken, self._latency = self._by_cell(messages, 1), self._by_cell(messages, 2)
        self._free, self.arrival = np.zeros(shape), np.zeros(shape)
        """By cell: until when a message takes its link, and when the far side has it."""

    def _by_cell(self, messages: list[list[Message | None]], part: int) -> Floats:
        values = [[message[part] if message else 0.0 for message in block] for block in messages]
        return np.ascontiguousarray(
            np.array(values)[:, self.wavefronts.op_types]
        )  # cells are numbered in this order

    def settle(self, order: LinkOrder, least_ends: dict[int, Floats]) -> bool:
        """Follows the step until queues on shared links are what its messages make them.

        `least_ends` has rows whose operations cannot end before a time, by device.
        """
        if not order.shared:
            self._follow(order, least_ends)
            return True
        devices, cells = self.wavefronts.devices, self.wavefronts.rows * self.wavefronts.devices
        if not all(self._type_seconds[op_type] > 0 for op_type in np.flatnonzero(self.wavefronts.counts)):
            return False  # which of two things that happen at one time is first would be arbitrary
        taken, latency = self._taken.reshape(-1), self._latency.reshape(-1)
        sent = [(at, taken[at].copy(), latency[at].copy()) for _, at in order.shared]
        for at, seconds, _ in sent:
            taken[at] = 0.0
            latency[at] += seconds
        messages = sum(len(at) for at, _, _ in sent)
        for _ in range(_MOST_ROUNDS):
            self._follow(order, least_ends)
            changed = 0
            for at, seconds, late in sent:
                ready = self.ends.reshape(-1)[at % cells]
                by_time = np.lexsort((at % devices, ready))
                before = np.cumsum(seconds[by_time]) - seconds[by_time]
                through = np.maximum.accumulate(ready[by_time] - before) + before + seconds[by_time]
                delay = np.empty_like(ready)
                delay[by_time] = through - ready[by_time]
                delay += late
                changed += int(np.count_nonzero(delay != latency[at]))
                latency[at] = delay
            if changed == 0 or changed > _MOST_CHANGED * messages:
                return changed == 0
        return False

    def _follow(self, order: LinkOrder, least_ends: dict[int, Floats]) -> None:
        """Start, end and arrival of everything, row by row."""
        wavefronts = self.wavefronts
        arrival, free = self.arrival.reshape(-1), self._free.reshape(-1)
        came, queued = np.zeros(wavefronts.devices), np.zeros(wavefronts.devices)
        maximum, add, came_by, free_by = np.maximum, np.add, arrival.take, free.take
        rows = zip(
            wavefronts.needs,
            self.starts,
            self.seconds,
            self.ends,
            order.before[0],
            self._taken[0],
            self._free[0],
            self._latency[0],
            self.arrival[0],
            strict=True,
        )
        clock = self.ends[0]
        second_needs = wavefronts.second_needs
        for row, (needs, start, seconds, end, before, taken, through, latency, there) in enumerate(rows):
            if not row:
                continue
            came_by(needs, out=came, mode="clip")
            maximum(came, clock, out=start)
            if second_needs is not None:
                came_by(second_needs[row], out=came, mode="clip")
                maximum(came, start, out=start)
            add(start, seconds, out=end)
            if row in least_ends:
                maximum(end, least_ends[row], out=end)
            clock = end
            free_by(before, out=queued, mode="clip")
            maximum(queued, clock, out=queued)
            add(queued, taken, out=through)
            add(through, latency, out=there)
            if second_needs is not None:
                free_by(order.before[1][row], out=queued, mode="clip")
                maximum(queued, clock, out=queued)
                add(queued, self._taken[1][row], out=self._free[1][row])
                add(self._free[1][row], self._latency[1][row], out=self.arrival[1][row])

    def waits(self) -> Floats:
        """By cell: waiting for a message that was on its way."""
        wavefronts = self.wavefronts
        gap = np.zeros_like(self.starts)
        gap[1:] = self.starts[1:] - self.ends[:-1]
        delays = (self.arrival - self.ends).reshape(-1)
        delay = delays[wavefronts.needs]
        if wavefronts.second_needs is not None:
            arrival = self.arrival.reshape(-1)
            later = arrival[wavefronts.second_needs] > arrival[wavefronts.needs]
            delay = np.where(later, delays[wavefronts.second_needs], delay)
        waits: Floats = np.minimum(gap, delay)
        return waits
