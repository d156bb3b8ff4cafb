"""Runs a long step with most of its repetitions left out.

In the middle of a step every device runs the same few operations again and again (the body of its order),
each time `shift` micro-batches on. Where each link has one sender, `period` finds what repeats. The step is
then run with fewer turns and the constant added as often as turns were left out.

Where devices share links or collectives run in every turn, the events are watched instead: once the whole
state (what each device is doing, what is on its way, how long links are taken) is one that was seen some
turns before, what follows is what followed then.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.compiler import compile_program
from megalith.explore.pipeline.simulation.events import StateWatch, run_events
from megalith.explore.pipeline.simulation.in_order import run_in_order
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import RunRecord
from megalith.explore.pipeline.simulation.steady_state.bodies import (
    SteadyBodies,
    SteadyRange,
    find_bodies,
    shorten,
    steady_range,
)
from megalith.explore.pipeline.simulation.steady_state.period import StepPeriod, find_period


@dataclass(slots=True)
class ShortenedRun:
    """A run with turns left out, and what they add."""

    program: Program
    run: RunRecord
    period: StepPeriod
    periods: int
    """How many were left out."""
    compute: list[float]
    """By device: computing in the turns left out."""
    link_busy: dict[Hashable, float]


def run_skipping(schedule: Schedule, costs: StepCosts, grid: float) -> ShortenedRun | None:
    """The run of a long step without most of its repetitions; None if it has too few or never settles."""
    if "bodies" not in schedule.derived:
        schedule.derived["bodies"] = find_bodies(schedule)
    bodies: SteadyBodies | None = schedule.derived["bodies"]
    if bodies is None:
        return None
    spread = max(bodies.offset) - min(bodies.offset)
    # A micro-batch's trip through all devices and back is often the period, so keep twice that at least.
    kept = spread + 2 * bodies.reach + 2 * schedule.devices // bodies.shift + 6
    turns = max(1, schedule.devices // bodies.shift)
    while kept * 2 <= min(bodies.turns):
        left_out = (min(bodies.turns) - kept) // turns * turns
        if not left_out:
            return None
        short = shorten(schedule, bodies, left_out)
        program = compile_program(short, costs, grid)
        ranges = [steady_range(short, bodies, program, device) for device in range(short.devices)]
        if program.shared or _collectives_inside(program, ranges):
            run, period = _run_watched(short, bodies, program, ranges)
        else:
            run = run_in_order(short, program)
            period = find_period(short, bodies, program, run, ranges)
        if period is None:
            kept *= 3
        elif left_out % period.turns:
            turns = period.turns
            kept += turns
        else:
            return _shortened_run(program, run, ranges, left_out, period)
    return None


def _collectives_inside(program: Program, ranges: list[SteadyRange]) -> bool:
    """Whether collectives belong to the turns between the first and the last of a body."""
    for extras, (first, _, last) in zip(program.extras, ranges, strict=True):
        for at, extra in extras.items():
            if first <= at < last and (
                extra.needs_fetch or extra.early_fetch >= 0 or extra.prefetch or extra.reduce
            ):
                return True
    return False


def _run_watched(
    schedule: Schedule, bodies: SteadyBodies, program: Program, ranges: list[SteadyRange]
) -> tuple[RunRecord, StepPeriod | None]:
    watch = StateWatch(
        firsts=[first for first, _, _ in ranges],
        lengths=[length for _, length, _ in ranges],
        lasts=[last for _, _, last in ranges],
        shift=bodies.shift,
        next_position=ranges[0][0],
    )
    run = run_events(schedule, program, watch=watch)
    if watch.period is None:
        return run, None
    turns, seconds, (transfers, fetches, reduces) = watch.period
    return run, StepPeriod(turns, seconds, transfers, fetches, reduces)


def _shortened_run(
    program: Program, run: RunRecord, ranges: list[SteadyRange], left_out: int, period: StepPeriod
) -> ShortenedRun:
    compute = []
    busy: dict[Hashable, float] = {}
    for device, (first, length, _) in enumerate(ranges):
        op_types, extras = program.op_types[device], program.extras[device]
        compute.append(left_out * sum(program.seconds[op_types[at]] for at in range(first, first + length)))
        for at in range(first, first + length):
            sent = [program.messages[op_types[at]] if program.sends[device][at] else None]
            extra = extras.get(at)
            if extra is not None:
                sent += [extra.second_message if extra.second_sends else None, extra.reduce]
                sent.append(extra.needs_fetch)
            for message in sent:
                if message is not None:
                    link = program.links[message[0]]
                    busy[link] = busy.get(link, 0.0) + left_out * message[1]
    return ShortenedRun(program, run, period, left_out // period.turns, compute, busy)
