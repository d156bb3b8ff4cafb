"""Runs a schedule with given costs: exact, event by event, queues on links included.

    schedule = build_schedule("1f1b", devices=8, micro_batches=64)
    timeline = simulate(schedule, StepCosts.uniform(8, 1.0, 1.0, 1.0))

Wide pipelines are followed row by row (`waves`). Long steps repeat themselves: `steady` finds the period,
where there is one, and skips repetitions with exactly the result of running them all.
"""

from __future__ import annotations

from collections.abc import Hashable

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.compiler import compile_program, grid_of
from megalith.explore.pipeline.simulation.events import run_timed
from megalith.explore.pipeline.simulation.in_order import run_ordered
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import Run
from megalith.explore.pipeline.simulation.steady_state import Skipped, run_skipping
from megalith.explore.pipeline.timeline import Span, Timeline

WIDE = 8
LONG = 8192
"""Devices, and operations of a device, from and up to which a step is followed row by row."""


def simulate(schedule: Schedule, costs: StepCosts, *, record: bool = False, skip: bool = True) -> Timeline:
    """The step that this order and these costs make; `record` keeps every span, `skip=False` runs every
    repetition of a long step too."""
    grid = grid_of(schedule, costs)
    if skip and not record:
        if _is_wide(schedule) and (timeline := _follow_waves(schedule, costs, grid)) is not None:
            return timeline
        skipped = run_skipping(schedule, costs, grid)
        if skipped is not None:
            return _timeline(schedule, costs, skipped.program, skipped.run, skipped=skipped)
    program = compile_program(schedule, costs, grid)
    if record or program.shared:
        run = run_timed(schedule, program, record=record)
    else:
        run = run_ordered(schedule, program)
    return _timeline(schedule, costs, program, run, record=record)


def _is_wide(schedule: Schedule) -> bool:
    """Whether rows of operations pay: many devices, and not so many operations that skipping saves more."""
    longest = max(
        sum(len(segment.ops) * segment.repeats for segment in segments) for segments in schedule.segments
    )
    return schedule.devices >= WIDE and longest <= LONG


def _follow_waves(schedule: Schedule, costs: StepCosts, grid: float) -> Timeline | None:
    from megalith.explore.pipeline.simulation.wavefront_run import run_waves

    run = run_waves(schedule, costs, grid)
    if run is None:
        return None
    return assemble(schedule, peaks=peak_activations(schedule, costs), **run.by_name())


def _timeline(
    schedule: Schedule,
    costs: StepCosts,
    program: Program,
    run: Run,
    *,
    record: bool = False,
    skipped: Skipped | None = None,
) -> Timeline:
    compute = [sum(map(program.seconds.__getitem__, slots)) for slots in program.slots]
    transfers = [mine[-1] if mine else 0.0 for mine in run.transfer_waits]
    fetches, reduces = run.fetch_waits, run.reduce_waits
    busy: dict[Hashable, float] = dict(zip(program.links, run.link_busy, strict=True))
    compute_ends, reduce_ends = run.compute_ends, run.reduce_ends
    if skipped is not None:
        period, times = skipped.period, skipped.periods

        def grown(seconds: list[float], more: list[float], by: int = times) -> list[float]:
            return [mine + by * part for mine, part in zip(seconds, more, strict=True)]

        compute = grown(compute, skipped.compute, 1)
        transfers = grown(transfers, period.transfer_waits)
        fetches = grown(fetches, period.fetch_waits)
        reduces = grown(reduces, period.reduce_waits)
        for link, seconds in skipped.link_busy.items():
            busy[link] += seconds
        compute_ends = [end + times * period.seconds for end in compute_ends]
        reduce_ends = [end + times * period.seconds if end else 0.0 for end in reduce_ends]
    return assemble(
        schedule,
        compute=compute,
        starts=[mine[0] if mine else 0.0 for mine in run.starts],
        compute_ends=compute_ends,
        reduce_ends=reduce_ends,
        transfers=transfers,
        first_waits=[mine[0] if mine else 0.0 for mine in run.transfer_waits],
        fetches=fetches,
        reduces=reduces,
        first_fetches=run.first_fetch_waits,
        optimizer=program.optimizer,
        link_busy=busy,
        peaks=peak_activations(schedule, costs),
        spans=_spans(schedule, program, run) if record else (),
    )


def assemble(
    schedule: Schedule,
    *,
    compute: list[float],
    starts: list[float],
    compute_ends: list[float],
    reduce_ends: list[float],
    transfers: list[float],
    first_waits: list[float],
    fetches: list[float],
    first_fetches: list[float],
    reduces: list[float],
    optimizer: list[float],
    link_busy: dict[Hashable, float],
    peaks: tuple[float, ...],
    spans: tuple[Span, ...] = (),
) -> Timeline:
    """A timeline from what each device did."""
    devices = range(schedule.devices)
    reduced = [max(compute_ends[device], reduce_ends[device]) for device in devices]
    ends = [reduced[device] + optimizer[device] for device in devices]
    makespan = max(ends)
    lengths = [ends[device] - starts[device] + first_fetches[device] for device in devices]
    step = makespan if schedule.barrier else max(lengths)
    gradient = [reduced[device] - compute_ends[device] + reduces[device] for device in devices]
    if not schedule.barrier:
        # A device's step begins with its first operation: what it waited for before belongs to nobody.
        transfers = [transfers[device] - first_waits[device] for device in devices]
    bubble = [
        step - compute[device] - transfers[device] - fetches[device] - gradient[device] - optimizer[device]
        for device in devices
    ]
    computing = [compute_ends[device] - starts[device] for device in devices]
    cost = max(computing)
    return Timeline(
        step_seconds=step,
        makespan_seconds=makespan,
        compute_seconds=tuple(compute),
        exposed_seconds={
            "bubble": tuple(bubble),
            "transfer": tuple(transfers),
            "parameters": tuple(fetches),
            "gradient": tuple(gradient),
            "optimizer": tuple(optimizer),
        },
        bubble_rate=(cost - max(compute)) / cost if cost else 0.0,
        device_bubble_rate=tuple(
            (computing[device] - compute[device]) / computing[device] if computing[device] else 0.0
            for device in devices
        ),
        link_busy_seconds=link_busy,
        peak_activations=peaks,
        spans=spans,
    )


def peak_activations(schedule: Schedule, costs: StepCosts) -> tuple[float, ...]:
    """The most that each device holds at one time: from the start of a forward to the end of its weight
    gradient, less `1 - kept_for_weights` once the input gradient is done. The order alone decides it."""
    key = "peaks", costs.activation, costs.kept_for_weights
    if key not in schedule.derived:
        schedule.derived[key] = _peak_activations(schedule, costs)
    found: tuple[float, ...] = schedule.derived[key]
    return found


def _peak_activations(schedule: Schedule, costs: StepCosts) -> tuple[float, ...]:
    held_on = costs.activation or (1.0,) * schedule.stages
    peaks = []
    for stages, segments in zip(schedule.chunk_stages, schedule.segments, strict=True):
        holds = [held_on[stage] for stage in stages]
        now = peak = 0.0
        for segment in segments:
            changes = [_holding(op.kind, op.chunk, op.backward_chunk, holds, costs) for op in segment.ops]
            grows = sum(before + after for before, after in changes)
            # The first turn and, if each leaves more behind, the last hold the most.
            for turn in {0, segment.repeats - 1} if segment.repeats else ():
                level = now + turn * grows
                for before, after in changes:
                    level += before
                    peak = max(peak, level)
                    level += after
            now += segment.repeats * grows
        peaks.append(peak)
    return tuple(peaks)


def _holding(
    kind: str, chunk: int, backward_chunk: int, holds: list[float], costs: StepCosts
) -> tuple[float, float]:
    """What an operation takes when it starts and what it gives back (negative) when it ends."""
    kept = costs.kept_for_weights
    if kind == "F":
        return holds[chunk], 0.0
    if kind == "B":
        return 0.0, -holds[chunk] * (1.0 - kept)
    if kind == "W":
        return 0.0, -holds[chunk] * kept
    if kind == "BW":
        return 0.0, -holds[chunk]
    return holds[chunk], -holds[backward_chunk]


def _spans(schedule: Schedule, program: Program, run: Run) -> tuple[Span, ...]:
    spans: list[Span] = []
    order = schedule.order
    owners: list[list[int]] = []
    for device, ops in enumerate(order):
        owner = program.owners[device] or list(range(len(ops)))
        owners.append(owner)
        starts, slots = run.starts[device], program.slots[device]
        for index, (start, slot) in enumerate(zip(starts, slots, strict=True)):
            op = ops[owner[index]]
            end = start + program.seconds[slot]
            spans.append(Span(device, op.kind, op.chunk, op.micro_batch, start, end))
        reduced = max(run.compute_ends[device], run.reduce_ends[device])
        if program.optimizer[device]:
            end = reduced + program.optimizer[device]
            spans.append(Span(device, "optimizer", -1, -1, reduced, end))
    for link, kind, device, index, start, end in run.sent:
        op = order[device][owners[device][min(index, len(owners[device]) - 1)]]
        backward = kind == "backward" and op.kind == "FB"
        chunk = op.backward_chunk if backward else op.chunk
        micro_batch = op.backward_micro_batch if backward else op.micro_batch
        spans.append(Span(program.links[link], kind, chunk, micro_batch, start, end))
    return tuple(spans)
