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

from dataclasses import dataclass, replace

from megalith.explore.search.bounds.order_times import order_seconds
from megalith.explore.search.bounds.pipeline_times import PipelineTimes

FUSED = ("gpipe", "1f1b", "interleaved", "breadth-first")
"""Schedules that compute both gradients at once. The others may put weight gradients off, and those of the
zero-bubble family also begin a step on each device as soon as that device can."""


@dataclass(frozen=True, slots=True)
class PipelineBounds:
    """The figures of a pipeline that its schedule does not change, and the bounds that follow from them."""

    times: PipelineTimes
    transfer_sums: tuple[float, ...]
    """Seconds on links, in one direction, from the first virtual stage to each."""
    busiest_link: float
    """Seconds of one micro-batch's messages, in one direction, on the busiest link between stages."""
    both_directions: bool
    """Whether that link carries messages of both directions."""
    micro_batches: int
    pp: int
    vpp: int
    bounded_devices: tuple[int, ...]
    """Devices whose fill, drain and flight are looked at: the ends, and where a long link follows."""
    first_reduce: float = 0.0
    """Reducing the gradients of the first virtual stage; 0 where that is not known yet; so the others."""
    least_reduce: float = 0.0
    """The same of the virtual stage that has the least."""
    device_reduce: float = 0.0
    """The same of a device, once, with all its chunks."""
    device_gather: float = 0.0
    """Gathering its weights once."""
    link_devices: float = 1.0
    """Devices whose replicas talk over the same link."""
    stage_copy_reduce: float = 0.0
    """DualPipe: adding up the gradients of the two copies of a stage, after the step."""
    reduces_always: bool = False
    """Gradients are reduced with every operation, not once a step; so the weights below."""
    gathers_always: bool = False
    same_link: bool = True
    """Weights and gradients queue on the same link."""
    contended: float = 0.0
    """Share of the traffic that hides behind compute which the compute pays for."""

    def lower_bound(self, schedule: str, extra_in_flight: int = 0, *, ordered: bool = False) -> float:
        """No prediction of this pipeline takes fewer seconds, stragglers and the host's work not counted.

        `ordered` follows the schedule's order too, which takes milliseconds the first time."""
        alone = self._simulated(schedule, extra_in_flight)
        if ordered and self.pp > 1:
            alone = max(alone, order_seconds(self.times, schedule, self.pp, self.micro_batches))
        return alone + self._slowed(alone)

    def _slowed(self, alone: float) -> float:
        """What is exchanged once a step either waits, for which there is no more room than a device idles,
        or slows the compute that it hides behind."""
        once = 0.0 if self.reduces_always else self.device_reduce
        once += 0.0 if self.gathers_always else self.device_gather
        idle = alone - self.micro_batches * min(self.times.work)
        return self.contended * max(0.0, once - max(0.0, idle))

    def _simulated(self, schedule: str, extra_in_flight: int) -> float:
        """No simulation takes fewer seconds."""
        times, count, pp = self.times, self.micro_batches, self.pp
        fused = schedule in FUSED
        if pp == 1:
            compute = count * times.busiest + max(0.0, self.first_reduce - times.first_backward)
            return max(compute, self.traffic(schedule))
        if schedule == "dualpipe":
            return self._dualpipe_bound()
        hidden = times.longest_backward if fused else times.longest_weight
        # Between the first message that a device waits for and the last, the link carries all others; without
        # a barrier the two directions of a link belong to steps of two devices.
        directions = 2 if self.both_directions and not schedule.startswith("zb") else 1
        best = max(self.traffic(schedule), (count - 1) * directions * self.busiest_link)
        best = max(best, count * times.busiest + max(0.0, self.least_reduce - hidden))
        exposed = max(0.0, self.first_reduce - times.first_backward) if fused else 0.0
        for device in self.bounded_devices:
            fill = times.forward_sums[device] + self.transfer_sums[device]
            drain = times.backward_sums[device] + self.transfer_sums[device]
            work = times.work[device]
            if fused:
                drain += times.weight_sums[device]
            else:
                work -= times.weights[device]
            flight = count * work
            most = self._in_flight(schedule, extra_in_flight, device)
            if most is not None:
                # Sorted by start, each begins a round trip or more after the one `most` before it, and the
                # first of them one forward after another.
                trips, before = divmod(count - 1, most)
                forward = times.forward_sums[device + 1] - times.forward_sums[device]
                trip = self._round_trip(device, fused)
                flight = max(flight, before * forward + (1 + trips) * trip)
            best = max(best, fill + flight + drain + exposed)
            if schedule == "long-link":
                best = max(best, fill + count * times.work[device])
        if schedule == "interleaved":
            best = max(best, self._interleaved_flight())
        if self.vpp > 1:
            best = max(best, self._last_stage(schedule, fused) + exposed)
        return best

    def _last_stage(self, schedule: str, fused: bool) -> float:
        """The last virtual stage computes all micro-batches, after the first has come to it through all
        chunks and before the last has gone back through them. Breadth-first, a device begins a chunk with all
        micro-batches of the one before behind it, and goes back alike."""
        times, pp = self.times, self.pp
        sums = [times.forward_sums, times.backward_sums]
        if fused:
            both = zip(times.backward_sums, times.weight_sums, strict=True)
            sums[1] = tuple(backward + weight for backward, weight in both)
        total = sum(self.micro_batches * (part[-1] - part[-2]) for part in sums)
        for part in sums:
            if schedule != "breadth-first":
                total += part[-2] + self.transfer_sums[-1]
                continue
            for first in range(0, (self.vpp - 1) * pp, pp):
                path = part[first + pp] - part[first]
                path += self.transfer_sums[first + pp] - self.transfer_sums[first]
                total += max(path, self.micro_batches * (part[first + 1] - part[first]))
            last = (self.vpp - 1) * pp
            total += part[-2] - part[last] + self.transfer_sums[-1] - self.transfer_sums[last]
        return total

    def _dualpipe_bound(self) -> float:
        times, count, pp = self.times, self.micro_batches, self.pp
        # Two directions share a device, and one's expert traffic may hide behind the other.
        trips = 1 + (count // 2 - 1) // (pp + 1)
        flight = trips * (self._round_trip(0, False) - times.experts)
        work = count * (sum(times.work) - times.experts) / pp
        work += max(0.0, self.least_reduce - times.longest_backward)
        slowest = max(self.traffic("dualpipe"), flight, work, (count // 2 - 1) * self.busiest_link)
        for device in (pp // 2 - 1, pp // 2):
            # Nothing comes to the middle before half of the stages are through, from either end.
            twin = pp - 1 - device
            stages = min(device, twin)
            fill = times.forward_sums[stages] + self.transfer_sums[stages]
            both = count // 2 * (times.work[device] + times.work[twin])
            slowest = max(slowest, fill + both - count * times.experts)
        return slowest + self.stage_copy_reduce

    def estimate(self, schedule: str, extra_in_flight: int = 0) -> float:
        """What the step may well take: not proved, only used to look at promising plans first."""
        alone = replace(self, first_reduce=0.0, least_reduce=0.0).lower_bound(schedule, extra_in_flight)
        exposed = 0.0 if self.reduces_always else self.device_reduce
        exposed += 0.0 if self.gathers_always else self.device_gather
        # Steps that overlap still share the link: over many of them it has to carry them all.
        return max(alone + exposed, self.traffic("1f1b"))

    def traffic(self, schedule: str) -> float:
        """What one link has to carry for replicas, message after message."""
        # Without a barrier a device's step begins when its first weights are there, and ends by itself.
        apart = schedule.startswith("zb")
        often = (3 if apart else 2) * self.micro_batches if self.gathers_always else 1
        reduces = self.device_reduce * (self.micro_batches if self.reduces_always else 1)
        gathers = self.device_gather * (often - 1 if apart else often)
        seconds = reduces + gathers if self.same_link else max(reduces, gathers)
        return seconds if apart else self.link_devices * seconds

    def _in_flight(self, schedule: str, extra: int, device: int) -> int | None:
        """Micro-batches between their first forward and last backward on a device, at most; None: any."""
        pp, behind = self.pp, self.pp - 1 - device
        if schedule in ("1f1b", "zb-h1"):
            return behind + 1
        if schedule == "zb-h2":
            return 2 * behind + 1
        if schedule == "zb-v":
            return 2 * pp if device == 0 else None
        if schedule == "long-link":
            return pp + extra if self.vpp == 1 else self.vpp * (pp + extra) + pp - 1
        return None

    def _round_trip(self, device: int, fused: bool) -> float:
        """From the start of a forward on a device to the end of the same micro-batch's backward there."""
        times = self.times
        trip = times.forward_sums[-1] - times.forward_sums[device]
        trip += times.backward_sums[-1] - times.backward_sums[device]
        if fused:
            trip += times.weight_sums[-1] - times.weight_sums[device]
        return trip + 2 * (self.transfer_sums[-1] - self.transfer_sums[device])

    def _interleaved_flight(self) -> float:
        """Device 0 begins a group of micro-batches when one so many groups before has come back to its last
        chunk."""
        times, pp, vpp = self.times, self.pp, self.vpp
        ahead = 2 * (pp - 1) + (vpp - 1) * pp + 1
        groups_ahead = -(-ahead // (pp * vpp))
        chunk = (vpp - 1) * pp
        trip = times.forward_sums[-1] + self.transfer_sums[-1]
        trip += times.backward_sums[-1] - times.backward_sums[chunk]
        trip += times.weight_sums[-1] - times.weight_sums[chunk]
        trip += self.transfer_sums[-1] - self.transfer_sums[chunk]
        return (1 + max(0, self.micro_batches // pp - 1) // groups_ahead) * trip
