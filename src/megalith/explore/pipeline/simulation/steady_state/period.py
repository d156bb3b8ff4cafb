"""Finds the period of a step in which each link has one sender.

Every time in such a step is a maximum of sums of earlier times. So once one turn of all bodies is the turn
`period` before it plus a constant, and as many turns in a row are as the dependencies reach back, all later
turns are too, by induction. Times lie on a grid on which sums are exact (`op_table`), so the test for "plus a
constant" is equality.
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.explore.pipeline.operations import Schedule, parts
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import RunRecord
from megalith.explore.pipeline.simulation.steady_state.bodies import (
    SteadyBodies,
    SteadyRange,
    body_range,
    previous_stage,
)


@dataclass(slots=True)
class StepPeriod:
    """What repeats: so many turns, so many seconds, and by device what is waited for in that time."""

    turns: int
    seconds: float
    transfer_waits: list[float]
    fetch_waits: list[float]
    reduce_waits: list[float]


def find_period(
    schedule: Schedule, bodies: SteadyBodies, program: Program, run: RunRecord, ranges: list[SteadyRange]
) -> StepPeriod | None:
    """The period of a step in which each link has one sender, if it has settled."""
    turns = [body_range(schedule, bodies, device)[2] for device in range(schedule.devices)]
    # One turn less at both ends: collectives may belong to the first and the last.
    newest = min(count - 2 + offset for count, offset in zip(turns, bodies.offset, strict=True))
    oldest = max(bodies.offset) + 1
    window = max(newest - _tail_reaches(schedule, bodies, newest), bodies.reach) + 1
    times = [
        _TurnTimes(ranges[device], bodies.offset[device], program, run, device)
        for device in range(schedule.devices)
    ]
    for period in range(1, newest - window - oldest - bodies.reach + 1):
        seconds = times[0].start(newest) - times[0].start(newest - period)
        if all(
            device.repeats(generation, period, seconds)
            for generation in range(newest, newest - window, -1)
            for device in times
        ):
            if run.first_fetch_end > min(device.start(newest - window - period + 1) for device in times):
                return None
            nothing = [0.0] * schedule.devices
            waited = [device.waited(newest, period) for device in times]
            return StepPeriod(period, seconds, waited, nothing, nothing)
    return None


def _tail_reaches(schedule: Schedule, bodies: SteadyBodies, newest: int) -> int:
    """The oldest generation that operations after the bodies (or after `newest`) still wait for."""
    where: dict[tuple[str, int, int], tuple[int, int, int]] = {}
    stages = schedule.chunk_stages
    for device, index in enumerate(bodies.index):
        body = schedule.segments[device][index]
        for op in body.ops:
            for kind, chunk, micro_batch in parts(op):
                key = kind, stages[device][chunk], micro_batch % bodies.shift
                where[key] = device, micro_batch, body.repeats
    per_stream = schedule.stages // schedule.streams
    oldest = newest + 1 - bodies.reach
    for device, index in enumerate(bodies.index):
        for op in (op for segment in schedule.segments[device][index + 1 :] for op in segment.expand()):
            for kind, chunk, micro_batch in parts(op):
                before = previous_stage(kind, stages[device][chunk], per_stream)
                if before is None:
                    continue
                other, first, turns = where[kind, before, micro_batch % bodies.shift]
                turn = (micro_batch - first) // bodies.shift
                if 0 <= turn < turns:
                    oldest = min(oldest, turn + bodies.offset[other])
    return oldest


class _TurnTimes:
    """Start and arrival times of one device's turns, by generation."""

    def __init__(
        self, ranges: SteadyRange, offset: int, program: Program, run: RunRecord, device: int
    ) -> None:
        first, self.length, _ = ranges
        self.first = first - (offset + 1) * self.length
        self.starts, self.waits = run.starts[device], run.transfer_waits[device]
        self.arrival = run.arrival
        self.sends, self.extras = program.sends[device], program.extras[device]

    def start(self, generation: int) -> float:
        return self.starts[self.first + generation * self.length]

    def repeats(self, generation: int, period: int, seconds: float) -> bool:
        """Whether all of a generation happened `seconds` after the same `period` generations before."""
        base = self.first + generation * self.length
        back = period * self.length
        for at in range(base, base + self.length):
            if self.starts[at] - self.starts[at - back] != seconds:
                return False
            send = self.sends[at]
            if send and self.arrival[send] - self.arrival[self.sends[at - back]] != seconds:
                return False
            extra = self.extras.get(at)
            if extra is not None and extra.second_sends:
                before = self.extras[at - back].second_sends
                if self.arrival[extra.second_sends] - self.arrival[before] != seconds:
                    return False
        return True

    def waited(self, generation: int, period: int) -> float:
        last = self.first + (generation + 1) * self.length - 1
        return self.waits[last] - self.waits[last - period * self.length]
