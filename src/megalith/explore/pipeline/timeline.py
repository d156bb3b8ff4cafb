"""What a simulated step was like: how long, who waited for what, how full the links and the memory were."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

CAUSES = ("bubble", "transfer", "parameters", "gradient", "optimizer")
"""Why a device is not computing: no work has come, it is on its way, parameters are fetched, gradients are
exchanged after the last operation, weights are updated."""


class TimelineSpan(NamedTuple):
    """Something that took time, on a device (its number) or on a link (its name)."""

    resource: Hashable
    kind: str
    """F, B, W, BW, FB on a device; forward, backward, parameters, gradient on a link; optimizer."""
    chunk: int
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step."""

    step_seconds: float
    """From one step to the next: until the last device ends or, for schedules that need no barrier between
    steps, the longest time that any device spends from its first operation to its end."""
    makespan_seconds: float
    """From the first operation of any device to the end of the last."""
    compute_seconds: tuple[float, ...]
    """By device: what its operations take."""
    exposed_seconds: dict[str, tuple[float, ...]]
    """Cause -> seconds by device; with `compute_seconds` they add up to `step_seconds` on every device.
    Waiting counts as transfer as far as the message itself took, and as bubble before it was sent."""
    bubble_rate: float
    """(cost - compute) / cost as the zero-bubble paper has it: cost is the longest time from first operation
    to last of any device, compute what the busiest device computes. Collectives and optimizer do not
    count."""
    device_bubble_rate: tuple[float, ...]
    """The same by device: the idle share of the time from its first operation to its last."""
    link_busy_seconds: dict[Hashable, float]
    peak_activations: tuple[float, ...]
    """By device: the most that is held between forward and weight gradient at one time, in micro-batches of
    one chunk (or in the unit of `StepCosts.activation`)."""
    spans: tuple[TimelineSpan, ...] = field(default=(), compare=False)
    """Everything that happened, when asked for."""
