"""Skips what repeats in a long step, with exactly the result of running all of it.

In the middle of a step every device runs the same few operations again and again (the body of its order),
each time `shift` micro-batches on. When each link has one sender, every time in the step is a maximum of sums
of earlier times. So once one turn of all bodies is the turn `period` before it plus a constant, and as many
turns in a row are as the dependencies reach back, all later turns are too, by induction. The step is then run
with fewer turns and the constant added as often as turns were left out. Times lie on a grid on which sums are
exact (`program`), so the test for "plus a constant" is equality.

Turns of different devices are numbered as generations, in which nothing depends on a later generation.

Where devices share links or collectives run in every turn, the events are watched instead: once the whole
state (what each device is doing, what is on its way, how long links are taken) is one that was seen some
turns before, what follows is what followed then.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Op, Schedule, Segment, parts
from megalith.explore.pipeline.simulation.compiler import compile_program
from megalith.explore.pipeline.simulation.events import Watch, run_timed
from megalith.explore.pipeline.simulation.in_order import run_ordered
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import Run


@dataclass(slots=True)
class _Bodies:
    """The repeating segment of each device and how their turns depend on one another."""

    index: list[int]
    """Which segment of each device it is."""
    turns: list[int]
    shift: int
    offset: list[int]
    """Generation of a turn: its number plus this."""
    reach: int
    """How many generations back an operation of a body depends."""


@dataclass(slots=True)
class Period:
    """What repeats: so many turns, so many seconds, and by device what is waited for in that time."""

    turns: int
    seconds: float
    transfer_waits: list[float]
    fetch_waits: list[float]
    reduce_waits: list[float]


@dataclass(slots=True)
class Skipped:
    """A run with turns left out, and what they add."""

    program: Program
    run: Run
    period: Period
    periods: int
    """How many were left out."""
    compute: list[float]
    """By device: computing in the turns left out."""
    link_busy: dict[Hashable, float]


def run_skipping(schedule: Schedule, costs: StepCosts, grid: float) -> Skipped | None:
    """The run of a long step without most of its repetitions; None if it has too few or never settles."""
    if "bodies" not in schedule.derived:
        schedule.derived["bodies"] = _find_bodies(schedule)
    bodies: _Bodies | None = schedule.derived["bodies"]
    if bodies is None:
        return None
    spread = max(bodies.offset) - min(bodies.offset)
    # A micro-batch's way through all devices and back is often the period, so keep twice that at least.
    kept = spread + 2 * bodies.reach + 2 * schedule.devices // bodies.shift + 6
    turns = max(1, schedule.devices // bodies.shift)
    while kept * 2 <= min(bodies.turns):
        left_out = (min(bodies.turns) - kept) // turns * turns
        if not left_out:
            return None
        short = _shorten(schedule, bodies, left_out)
        program = compile_program(short, costs, grid)
        flat = [_flat_range(short, bodies, program, device) for device in range(short.devices)]
        if program.shared or _collectives_inside(program, flat):
            run, period = _run_watched(short, bodies, program, flat)
        else:
            run = run_ordered(short, program)
            period = _find_period(short, bodies, program, run, flat)
        if period is None:
            kept *= 3
        elif left_out % period.turns:
            turns = period.turns
            kept += turns
        else:
            return _skipped(program, run, flat, left_out, period)
    return None


def _find_bodies(schedule: Schedule) -> _Bodies | None:
    index, turns = [], []
    for segments in schedule.segments:
        most = max(range(len(segments)), key=lambda i: segments[i].repeats)
        rest = [segment.repeats for i, segment in enumerate(segments) if i != most]
        if 2 * max(rest, default=0) > segments[most].repeats:
            return None
        index.append(most)
        turns.append(segments[most].repeats)
    shift = schedule.segments[0][index[0]].shift
    bodies = [schedule.segments[device][index[device]] for device in range(schedule.devices)]
    if shift < 1 or any(body.shift != shift for body in bodies):
        return None
    lags = _lags(schedule, bodies, shift)
    if lags is None:
        return None
    offset = [0] * schedule.devices
    for _ in range(schedule.devices + 1):
        changed = False
        for (device, other), (_, latest) in lags.items():
            if offset[device] < offset[other] + latest:
                offset[device] = offset[other] + latest
                changed = True
        if not changed:
            break
    else:
        return None
    back = [offset[device] - offset[other] - earliest for (device, other), (earliest, _) in lags.items()]
    return _Bodies(index, turns, shift, offset, max([1, *back]))


def _lags(
    schedule: Schedule, bodies: list[Segment], shift: int
) -> dict[tuple[int, int], tuple[int, int]] | None:
    """(device, device it waits for) -> least and greatest turn of the other, relative to its own turn."""
    where: dict[tuple[str, int, int], tuple[int, int]] = {}
    stages = schedule.chunk_stages
    for device, body in enumerate(bodies):
        for op in body.ops:
            for kind, chunk, micro_batch in parts(op):
                key = kind, stages[device][chunk], micro_batch % shift
                if key in where:
                    return None
                where[key] = device, micro_batch
    per_stream = schedule.stages // schedule.streams
    if len(where) != 3 * schedule.stages * shift // schedule.streams:
        return None
    lags: dict[tuple[int, int], tuple[int, int]] = {}
    for (kind, stage, residue), (device, micro_batch) in where.items():
        before = _before(kind, stage, per_stream)
        if before is None:
            continue
        other, theirs = where[kind, before, residue]
        lag = (micro_batch - theirs) // shift
        least, greatest = lags.get((device, other), (lag, lag))
        lags[device, other] = min(least, lag), max(greatest, lag)
    return lags


def _before(kind: str, stage: int, per_stream: int) -> int | None:
    """The stage whose operation of the same kind comes first, if another device's message is needed."""
    place = stage % per_stream
    if kind == "F":
        return stage - 1 if place else None
    if kind == "B":
        return stage + 1 if place < per_stream - 1 else None
    return None


def _shorten(schedule: Schedule, bodies: _Bodies, left_out: int) -> Schedule:
    by = left_out * bodies.shift
    segments = []
    for mine, index in zip(schedule.segments, bodies.index, strict=True):
        body = mine[index]._replace(repeats=mine[index].repeats - left_out)
        later = mine[index + 1 :]
        after = (part._replace(ops=tuple(_moved(op, by) for op in part.ops)) for part in later)
        segments.append((*mine[:index], body, *after))
    return replace(schedule, micro_batches=schedule.micro_batches - by, segments=tuple(segments))


def _moved(op: Op, by: int) -> Op:
    back = op.backward_micro_batch - by if op.kind == "FB" else -1
    return op._replace(micro_batch=op.micro_batch - by, backward_micro_batch=back)


def _body_range(schedule: Schedule, bodies: _Bodies, device: int) -> tuple[int, int, int]:
    """First operation of the body, its length, its turns."""
    mine, index = schedule.segments[device], bodies.index[device]
    first = sum(len(segment.ops) * segment.repeats for segment in mine[:index])
    return first, len(mine[index].ops), mine[index].repeats


def _flat_range(schedule: Schedule, bodies: _Bodies, program: Program, device: int) -> tuple[int, int, int]:
    """Where the second turn of a body begins in the program, how long a turn is there, and where the last
    begins. The first and the last turn may be longer: collectives that run once a step cut their
    operations."""
    first, length, turns = _body_range(schedule, bodies, device)
    owners = program.owners[device]
    if not owners:
        return first + length, length, first + (turns - 1) * length
    begin = owners.index(first + length)
    return begin, owners.index(first + 2 * length) - begin, owners.index(first + (turns - 1) * length)


def _collectives_inside(program: Program, flat: list[tuple[int, int, int]]) -> bool:
    """Whether collectives belong to the turns between the first and the last of a body."""
    for specials, (first, _, last) in zip(program.specials, flat, strict=True):
        for at, special in specials.items():
            if first <= at < last and (
                special.needs_fetch or special.early_fetch >= 0 or special.prefetch or special.reduce
            ):
                return True
    return False


def _run_watched(
    schedule: Schedule, bodies: _Bodies, program: Program, flat: list[tuple[int, int, int]]
) -> tuple[Run, Period | None]:
    watch = Watch(
        firsts=[first for first, _, _ in flat],
        lengths=[length for _, length, _ in flat],
        lasts=[last for _, _, last in flat],
        shift=bodies.shift,
        next_position=flat[0][0],
    )
    run = run_timed(schedule, program, watch=watch)
    if watch.found is None:
        return run, None
    turns, seconds, (transfers, fetches, reduces) = watch.found
    return run, Period(turns, seconds, transfers, fetches, reduces)


def _find_period(
    schedule: Schedule, bodies: _Bodies, program: Program, run: Run, flat: list[tuple[int, int, int]]
) -> Period | None:
    """The period of a step in which each link has one sender, if it has settled."""
    turns = [_body_range(schedule, bodies, device)[2] for device in range(schedule.devices)]
    # One turn less at both ends: collectives may belong to the first and the last.
    newest = min(count - 2 + offset for count, offset in zip(turns, bodies.offset, strict=True))
    oldest = max(bodies.offset) + 1
    window = max(newest - _tail_reaches(schedule, bodies, newest), bodies.reach) + 1
    times = [
        _Times(flat[device], bodies.offset[device], program, run, device)
        for device in range(schedule.devices)
    ]
    for period in range(1, newest - window - oldest - bodies.reach + 1):
        seconds = times[0].start(newest) - times[0].start(newest - period)
        if all(
            mine.repeats(generation, period, seconds)
            for generation in range(newest, newest - window, -1)
            for mine in times
        ):
            if run.first_fetch_end > min(mine.start(newest - window - period + 1) for mine in times):
                return None
            nothing = [0.0] * schedule.devices
            return Period(period, seconds, [mine.waited(newest, period) for mine in times], nothing, nothing)
    return None


def _tail_reaches(schedule: Schedule, bodies: _Bodies, newest: int) -> int:
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
                before = _before(kind, stages[device][chunk], per_stream)
                if before is None:
                    continue
                other, first, turns = where[kind, before, micro_batch % bodies.shift]
                turn = (micro_batch - first) // bodies.shift
                if 0 <= turn < turns:
                    oldest = min(oldest, turn + bodies.offset[other])
    return oldest


class _Times:
    """Start and arrival times of one device's turns, by generation."""

    def __init__(
        self, flat: tuple[int, int, int], offset: int, program: Program, run: Run, device: int
    ) -> None:
        first, self.length, _ = flat
        self.first = first - (offset + 1) * self.length
        self.starts, self.waits = run.starts[device], run.transfer_waits[device]
        self.arrival = run.arrival
        self.sends, self.specials = program.sends[device], program.specials[device]

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
            special = self.specials.get(at)
            if special is not None and special.second_sends:
                before = self.specials[at - back].second_sends
                if self.arrival[special.second_sends] - self.arrival[before] != seconds:
                    return False
        return True

    def waited(self, generation: int, period: int) -> float:
        last = self.first + (generation + 1) * self.length - 1
        return self.waits[last] - self.waits[last - period * self.length]


def _skipped(
    program: Program, run: Run, flat: list[tuple[int, int, int]], left_out: int, period: Period
) -> Skipped:
    compute = []
    busy: dict[Hashable, float] = {}
    for device, (first, length, _) in enumerate(flat):
        slots, specials = program.slots[device], program.specials[device]
        compute.append(left_out * sum(program.seconds[slots[at]] for at in range(first, first + length)))
        for at in range(first, first + length):
            sent = [program.messages[slots[at]] if program.sends[device][at] else None]
            special = specials.get(at)
            if special is not None:
                sent += [special.second_message if special.second_sends else None, special.reduce]
                sent.append(special.needs_fetch)
            for message in sent:
                if message is not None:
                    link = program.links[message[0]]
                    busy[link] = busy.get(link, 0.0) + left_out * message[1]
    return Skipped(program, run, period, left_out // period.turns, compute, busy)
