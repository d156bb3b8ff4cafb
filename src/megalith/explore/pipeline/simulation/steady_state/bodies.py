"""What repeats in a schedule: the body of each device's order, and how the turns of bodies depend on one
another.

Turns of different devices are numbered as generations, in which nothing depends on a later generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from megalith.explore.pipeline.operations import Op, Schedule, Segment, parts
from megalith.explore.pipeline.simulation.program import Program


@dataclass(slots=True)
class SteadyBodies:
    """The repeating segment of each device and how their turns depend on one another."""

    index: list[int]
    """Which segment of each device it is."""
    turns: list[int]
    shift: int
    offset: list[int]
    """Generation of a turn: its number plus this."""
    reach: int
    """How many generations back an operation of a body depends."""


class SteadyRange(NamedTuple):
    """Where the turns of a device's body lie in the program."""

    first: int
    """Where the second turn begins."""
    length: int
    """Operations, or parts of them, in a turn."""
    last: int
    """Where the last turn begins."""


def find_bodies(schedule: Schedule) -> SteadyBodies | None:
    """The bodies of a schedule; None where devices do not repeat alike."""
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
    return SteadyBodies(index, turns, shift, offset, max([1, *back]))


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
        before = previous_stage(kind, stage, per_stream)
        if before is None:
            continue
        other, theirs = where[kind, before, residue]
        lag = (micro_batch - theirs) // shift
        least, greatest = lags.get((device, other), (lag, lag))
        lags[device, other] = min(least, lag), max(greatest, lag)
    return lags


def previous_stage(kind: str, stage: int, per_stream: int) -> int | None:
    """The stage whose operation of the same kind comes first, if another device's message is needed."""
    position = stage % per_stream
    if kind == "F":
        return stage - 1 if position else None
    if kind == "B":
        return stage + 1 if position < per_stream - 1 else None
    return None


def shorten(schedule: Schedule, bodies: SteadyBodies, left_out: int) -> Schedule:
    """The same schedule with so many turns of each body left out."""
    by = left_out * bodies.shift
    segments = []
    for own, index in zip(schedule.segments, bodies.index, strict=True):
        body = own[index]._replace(repeats=own[index].repeats - left_out)
        later = own[index + 1 :]
        after = (part._replace(ops=tuple(_moved(op, by) for op in part.ops)) for part in later)
        segments.append((*own[:index], body, *after))
    return replace(schedule, micro_batches=schedule.micro_batches - by, segments=tuple(segments))


def _moved(op: Op, by: int) -> Op:
    back = op.backward_micro_batch - by if op.kind == "FB" else -1
    return op._replace(micro_batch=op.micro_batch - by, backward_micro_batch=back)


def body_range(schedule: Schedule, bodies: SteadyBodies, device: int) -> tuple[int, int, int]:
    """First operation of the body, its length, its turns."""
    segments, index = schedule.segments[device], bodies.index[device]
    first = sum(len(segment.ops) * segment.repeats for segment in segments[:index])
    return first, len(segments[index].ops), segments[index].repeats


def steady_range(schedule: Schedule, bodies: SteadyBodies, program: Program, device: int) -> SteadyRange:
    """The turns of a device's body in the program.

    The first and the last turn may be longer than the others: collectives that run once a step cut their
    operations.
    """
    first, length, turns = body_range(schedule, bodies, device)
    owners = program.owners[device]
    if not owners:
        return SteadyRange(first + length, length, first + (turns - 1) * length)
    begin = owners.index(first + length)
    turn, last = owners.index(first + 2 * length) - begin, owners.index(first + (turns - 1) * length)
    return SteadyRange(begin, turn, last)
