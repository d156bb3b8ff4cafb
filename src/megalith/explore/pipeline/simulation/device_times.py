"""From what each device did in a step to its timeline."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.timeline import Timeline, TimelineSpan


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Seconds of a step by device, as every engine finds them."""

    compute: list[float]
    starts: list[float]
    """When its first operation began."""
    compute_ends: list[float]
    reduce_ends: list[float]
    """When the last gradients were there; 0: none."""
    transfers: list[float]
    """Waiting for messages on their way."""
    first_waits: list[float]
    """The part of it before the first operation."""
    fetches: list[float]
    """Waiting for parameters."""
    first_fetches: list[float]
    """The part of it before the first operation."""
    reduces: list[float]
    """Waiting for gradients between operations."""
    optimizer: list[float]
    link_busy: dict[Hashable, float]


def build_timeline(
    schedule: Schedule,
    times: DeviceTimes,
    peak_activations: tuple[float, ...],
    spans: tuple[TimelineSpan, ...] = (),
) -> Timeline:
    """The step that these times make."""
    devices = range(schedule.devices)
    compute, optimizer, transfers = times.compute, times.optimizer, times.transfers
    reduced = [max(end, reduce) for end, reduce in zip(times.compute_ends, times.reduce_ends, strict=True)]
    ends = [reduced[device] + optimizer[device] for device in devices]
    makespan = max(ends)
    lengths = [ends[device] - times.starts[device] + times.first_fetches[device] for device in devices]
    step = makespan if schedule.barrier else max(lengths)
    gradient = [reduced[device] - times.compute_ends[device] + times.reduces[device] for device in devices]
    if not schedule.barrier:
        # A device's step begins with its first operation: what it waited for before belongs to nobody.
        transfers = [transfers[device] - times.first_waits[device] for device in devices]
    bubble = [
        step
        - compute[device]
        - transfers[device]
        - times.fetches[device]
        - gradient[device]
        - optimizer[device]
        for device in devices
    ]
    computing = [times.compute_ends[device] - times.starts[device] for device in devices]
    cost = max(computing)
    return Timeline(
        step_seconds=step,
        makespan_seconds=makespan,
        compute_seconds=tuple(compute),
        exposed_seconds={
            "bubble": tuple(bubble),
            "transfer": tuple(transfers),
            "parameters": tuple(times.fetches),
            "gradient": tuple(gradient),
            "optimizer": tuple(optimizer),
        },
        bubble_rate=(cost - max(compute)) / cost if cost else 0.0,
        device_bubble_rate=tuple(
            (computing[device] - compute[device]) / computing[device] if computing[device] else 0.0
            for device in devices
        ),
        link_busy_seconds=times.link_busy,
        peak_activations=peak_activations,
        spans=spans,
    )
