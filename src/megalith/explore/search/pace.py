"""What a pipeline cannot do faster: closed forms for every schedule, each a lower bound on the simulation.

work       a device computes all micro-batches of all its stages
fill       device d waits until the first micro-batch has come through the stages before it
drain      after its last backward, gradients still go back through those stages
flight     with K micro-batches in flight, every K-th waits for a round trip to the end of the pipeline
           and back: what makes long links expensive
traffic    a link carries the weights and gradients of all stages that share it, one after the other
gradients  the last gradients leave when the last weight gradient is being computed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

FUSED = ("gpipe", "1f1b", "interleaved", "breadth-first")
"""Schedules that compute both gradients at once. The others may put weight gradients off, and those of the
zero-bubble family also begin a step on each device as soon as that device can."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the virtual stages of a pipeline for one micro-batch, and sums of them."""

    forward_sums: tuple[float, ...]
    """Of the stages before each, and of all; so the other two."""
    backward_sums: tuple[float, ...]
    weight_sums: tuple[float, ...]
    work: tuple[float, ...]
    """By device: everything."""
    weights: tuple[float, ...]
    """By device: weight gradients."""
    busiest: float
    first_backward: float
    """Both gradients of the first stage, after which nothing else follows."""
    longest_backward: float
    longest_weight: float

    @classmethod
    def of(
        cls,
        forward: Sequence[float],
        backward: Sequence[float],
        weight: Sequence[float],
        devices: Sequence[Sequence[int]],
    ) -> Times:
        """From seconds by virtual stage and the stages of each device."""
        total = [f + b + w for f, b, w in zip(forward, backward, weight, strict=True)]
        work = tuple(sum(total[stage] for stage in mine) for mine in devices)
        both = [b + w for b, w in zip(backward, weight, strict=True)]
        return cls(
            tuple(accumulate(forward, initial=0.0)),
            tuple(accumulate(backward, initial=0.0)),
            tuple(accumulate(weight, initial=0.0)),
            work,
            tuple(sum(weight[stage] for stage in mine) for mine in devices),
            max(work),
            both[0],
            max(both),
            max(weight),
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """The numbers of a pipeline that its schedule does not change."""

    times: Times
    way: tuple[float, ...]
    """Seconds on links, one way, from the first virtual stage to each."""
    micro_batches: int
    pp: int
    vpp: int
    watched: tuple[int, ...]
    """Devices whose fill, drain and flight are looked at: the ends, and where a long link follows."""
    reduce_seconds: float = 0.0
    """One reduction of the gradients of the smallest virtual stage; 0 where that is not known yet."""
    gather_seconds: float = 0.0
    reduces_always: bool = False
    """Gradients are reduced with every operation, not once a step; so the weights below."""
    gathers_always: bool = False
    sharers: int = 1
    """Stages whose replicas talk over the same link."""

    def floor(self, schedule: str) -> float:
        """No simulation of this pipeline takes fewer seconds."""
        times, count, pp = self.times, self.micro_batches, self.pp
        fused = schedule in FUSED
        last_op = times.first_backward if fused else times.longest_weight
        if pp == 1:
            compute = count * times.busiest + max(0.0, self.reduce_seconds - times.first_backward)
            return max(compute, self.traffic(schedule))
        if schedule == "dualpipe":
            return count * sum(times.work) / pp
        hidden = times.longest_backward if fused else times.longest_weight
        best = max(self.traffic(schedule), count * times.busiest + max(0.0, self.reduce_seconds - hidden))
        exposed = max(0.0, self.reduce_seconds - last_op) if fused else 0.0
        for device in self.watched:
            fill = times.forward_sums[device] + self.way[device]
            drain = times.backward_sums[device] + self.way[device]
            work = times.work[device]
            if fused:
                drain += times.weight_sums[device]
            else:
                work -= times.weights[device]
            flight = count * work
            ahead = _ahead(schedule, pp - 1 - device)
            if ahead is not None:
                flight = max(flight, (1 + (count - 1) // (ahead + 1)) * self._round_trip(device, fused))
            best = max(best, fill + flight + drain + exposed)
            if schedule == "long-link":
                best = max(best, fill + count * times.work[device])
        if schedule == "interleaved":
            best = max(best, self._interleaved_flight())
        return best

    def traffic(self, schedule: str) -> float:
        turns = self.micro_batches * self.vpp
        seconds = self.reduce_seconds * (turns if self.reduces_always else 1)
        # Without a barrier a device's step begins when its first weights are there, and ends by itself.
        apart = schedule.startswith("zb")
        gathers = (3 * turns if apart else 2 * turns) if self.gathers_always else 1
        if apart:
            return seconds + self.gather_seconds * (gathers - 1)
        return (seconds + self.gather_seconds * gathers) * self.sharers

    def _round_trip(self, device: int, fused: bool) -> float:
        """From the start of a forward on a device to the end of the same micro-batch's backward there."""
        times = self.times
        trip = times.forward_sums[-1] - times.forward_sums[device]
        trip += times.backward_sums[-1] - times.backward_sums[device]
        if fused:
            trip += times.weight_sums[-1] - times.weight_sums[device]
        return trip + 2 * (self.way[-1] - self.way[device])

    def _interleaved_flight(self) -> float:
        """Device 0 begins a group of micro-batches when one so many groups before has come back to its last
        chunk."""
        times, pp, vpp = self.times, self.pp, self.vpp
        ahead = 2 * (pp - 1) + (vpp - 1) * pp + 1
        groups_ahead = -(-ahead // (pp * vpp))
        chunk = (vpp - 1) * pp
        trip = times.forward_sums[-1] + self.way[-1]
        trip += times.backward_sums[-1] - times.backward_sums[chunk]
        trip += times.weight_sums[-1] - times.weight_sums[chunk]
        trip += self.way[-1] - self.way[chunk]
        return (1 + max(0, self.micro_batches // pp - 1) // groups_ahead) * trip


def _ahead(schedule: str, behind: int) -> int | None:
    """Forwards that a device runs before its first backward, where the schedule limits them."""
    if schedule in ("1f1b", "zb-h1"):
        return behind
    if schedule == "zb-h2":
        return 2 * behind
    return None
