"""Runs a schedule with given costs: exact, event by event, queues on links included.

    schedule = build_schedule("1f1b", devices=8, micro_batches=64)
    timeline = simulate(schedule, StepCosts.uniform(8, 1.0, 1.0, 1.0))

Wide pipelines are followed row by row (`simulation.wavefront`). Long steps repeat themselves:
`simulation.steady_state` finds the period, where there is one, and skips repetitions with exactly the result
of running them all.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.activations import peak_activations
from megalith.explore.pipeline.simulation.compiler import compile_program
from megalith.explore.pipeline.simulation.device_times import DeviceTimes, build_timeline
from megalith.explore.pipeline.simulation.events import run_events
from megalith.explore.pipeline.simulation.in_order import run_in_order
from megalith.explore.pipeline.simulation.op_table import grid_of
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import RunRecord
from megalith.explore.pipeline.simulation.spans import record_spans
from megalith.explore.pipeline.simulation.steady_state.skip import ShortenedRun, run_skipping
from megalith.explore.pipeline.timeline import Timeline

WIDE = 8
LONG = 8192
"""Devices, and operations of a device, from and up to which a step is followed row by row."""


def simulate(schedule: Schedule, costs: StepCosts, *, record: bool = False, skip: bool = True) -> Timeline:
    """The step that this order and these costs make; `record` keeps every span, `skip=False` runs every
    repetition of a long step too."""
    grid = grid_of(schedule, costs)
    if skip and not record and (times := _shortcut(schedule, costs, grid)) is not None:
        return build_timeline(schedule, times, peak_activations(schedule, costs))
    program = compile_program(schedule, costs, grid)
    if record or program.shared:
        run = run_events(schedule, program, record=record)
    else:
        run = run_in_order(schedule, program)
    spans = record_spans(schedule, program, run) if record else ()
    return build_timeline(schedule, _times_of(program, run), peak_activations(schedule, costs), spans)


def _shortcut(schedule: Schedule, costs: StepCosts, grid: float) -> DeviceTimes | None:
    """The step without following every operation by itself, where that is possible."""
    if _is_wide(schedule):
        # Only here, as numpy takes longer to import than most steps take to simulate.
        from megalith.explore.pipeline.simulation.wavefront.run import run_wavefronts

        times = run_wavefronts(schedule, costs, grid)
        if times is not None:
            return times
    shortened = run_skipping(schedule, costs, grid)
    return None if shortened is None else _with_periods(shortened)


def _is_wide(schedule: Schedule) -> bool:
    """Whether rows of operations pay: many devices, and not so many operations that skipping saves more."""
    longest = max(
        sum(len(segment.ops) * segment.repeats for segment in segments) for segments in schedule.segments
    )
    return schedule.devices >= WIDE and longest <= LONG


def _times_of(program: Program, run: RunRecord) -> DeviceTimes:
    """What each device did in a run."""
    busy: dict[Hashable, float] = dict(zip(program.links, run.link_busy, strict=True))
    return DeviceTimes(
        compute=[sum(map(program.seconds.__getitem__, op_types)) for op_types in program.op_types],
        starts=[starts[0] if starts else 0.0 for starts in run.starts],
        compute_ends=run.compute_ends,
        reduce_ends=run.reduce_ends,
        transfers=[waits[-1] if waits else 0.0 for waits in run.transfer_waits],
        first_waits=[waits[0] if waits else 0.0 for waits in run.transfer_waits],
        fetches=run.fetch_waits,
        first_fetches=run.first_fetch_waits,
        reduces=run.reduce_waits,
        optimizer=program.optimizer,
        link_busy=busy,
    )


def _with_periods(shortened: ShortenedRun) -> DeviceTimes:
    """What each device did, the periods that were left out included."""
    short = _times_of(shortened.program, shortened.run)
    period, count = shortened.period, shortened.periods

    def grown(seconds: list[float], more: list[float], times: int = count) -> list[float]:
        return [before + times * part for before, part in zip(seconds, more, strict=True)]

    busy = dict(short.link_busy)
    for link, seconds in shortened.link_busy.items():
        busy[link] += seconds
    return replace(
        short,
        compute=grown(short.compute, shortened.compute, 1),
        transfers=grown(short.transfers, period.transfer_waits),
        fetches=grown(short.fetches, period.fetch_waits),
        reduces=grown(short.reduces, period.reduce_waits),
        compute_ends=[end + count * period.seconds for end in short.compute_ends],
        reduce_ends=[end + count * period.seconds if end else 0.0 for end in short.reduce_ends],
        link_busy=busy,
    )
