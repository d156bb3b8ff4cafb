"""How many activations each device holds at most, which the order of a schedule decides."""

from __future__ import annotations

from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule


def peak_activations(schedule: Schedule, costs: StepCosts) -> tuple[float, ...]:
    """The most that each device holds at one time: from the start of a forward to the end of its weight
    gradient, less `1 - kept_for_weights` once the input gradient is done. The order alone decides it."""
    key = "peaks", costs.activation, costs.kept_for_weights
    if key not in schedule.derived:
        schedule.derived[key] = _peak_activations(schedule, costs)
    peaks: tuple[float, ...] = schedule.derived[key]
    return peaks


def _peak_activations(schedule: Schedule, costs: StepCosts) -> tuple[float, ...]:
    held_on = costs.activation or (1.0,) * schedule.stages
    peaks = []
    for stages, segments in zip(schedule.chunk_stages, schedule.segments, strict=True):
        holds = [held_on[stage] for stage in stages]
        now = peak = 0.0
        for segment in segments:
            changes = [_held_by(op.kind, op.chunk, op.backward_chunk, holds, costs) for op in segment.ops]
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


def _held_by(
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
