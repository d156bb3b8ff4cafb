"""Finds what repeats in a written-out order, so that a long step can be simulated by its parts and an order
made for few micro-batches be stretched to many."""

from __future__ import annotations

from dataclasses import replace

from megalith.explore.pipeline.operations import Op, Schedule, Segment


def find_repetition(schedule: Schedule, most: int = 8) -> Schedule | None:
    """The same order as prefix, repeated body and suffix on every device; None if it does not repeat itself.

    The body must advance by the same number of micro-batches, at most `most`, on every device.
    """
    order = schedule.order
    for shift in range(1, most + 1):
        found = []
        for ops in order:
            segments = _split(ops, shift, schedule.micro_batches)
            if segments is None:
                break
            found.append(segments)
        else:
            return replace(schedule, segments=tuple(found))
    return None


def _split(ops: tuple[Op, ...], shift: int, micro_batches: int) -> tuple[Segment, Segment, Segment] | None:
    length = len(ops) * shift // micro_batches
    if length == 0 or length * micro_batches != len(ops) * shift:
        return None
    middle = len(ops) // 2

    def again(at: int) -> bool:
        return at + length < len(ops) and _moved(ops[at], shift) == ops[at + length]

    first = middle
    while first > 0 and again(first - 1):
        first -= 1
    last = middle
    while again(last):
        last += 1
    turns = (last - first) // length + 1
    if turns < 3:
        return None
    end = first + turns * length
    return Segment(ops[:first]), Segment(ops[first : first + length], turns, shift), Segment(ops[end:])


def stretch(schedule: Schedule, turns: int) -> Schedule:
    """A schedule of three segments a device with `turns` more repetitions of the body."""
    shift = schedule.segments[0][1].shift
    by = turns * shift
    segments = []
    for prefix, body, suffix in schedule.segments:
        moved = Segment(tuple(_moved(op, by) for op in suffix.ops))
        segments.append((prefix, body._replace(repeats=body.repeats + turns), moved))
    return replace(schedule, micro_batches=schedule.micro_batches + by, segments=tuple(segments))


def _moved(op: Op, by: int) -> Op:
    back = op.backward_micro_batch + by if op.kind == "FB" else -1
    return op._replace(micro_batch=op.micro_batch + by, backward_micro_batch=back)
