"""Orders that hide a slow boundary: more micro-batches in flight before it, weight gradients where one waits.

Forwards run ahead on the devices before the slow link, by as many micro-batches as the link's share of the
round trip; behind it the order stays as it is (forwards that ran ahead there would only wait in
memory). The last devices hold fewer activations and use the room for weight gradients that they put off.
Given the costs, the best of these and of a greedy made for them (`greedy`) is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Kind, Op, Schedule, Segment
from megalith.explore.pipeline.schedules.greedy import GreedyPolicy, greedy_schedule
from megalith.explore.pipeline.schedules.one_forward_one_backward import interleaved
from megalith.explore.pipeline.simulate import simulate

GREEDY_OPERATIONS = 4000
"""A greedy for more than this takes longer than it is worth: the regular orders come close in a long step."""


def long_link(
    devices: int,
    micro_batches: int,
    chunks: int = 1,
    extra_in_flight: int = 0,
    costs: StepCosts | None = None,
) -> Schedule:
    """The best order for slow links that memory allows.

    Without costs, all links are taken for equally slow; memory is that of 1F1B (or of the interleaved
    schedule) plus `extra_in_flight` micro-batches.
    """
    limit = devices + extra_in_flight
    if costs is None:
        if chunks > 1:
            return interleaved(devices, micro_batches, chunks)
        return running_ahead(
            _ahead(devices, extra_in_flight, [float(devices - 1 - device) for device in range(devices)]),
            micro_batches,
            limit,
            False,
        )
    if len(costs.forward) != devices * chunks:
        raise PlanError(
            f"The costs are for {len(costs.forward)} virtual stages and {devices} devices x {chunks} chunks "
            f"have {devices * chunks}; give one per stage."
        )
    candidates: list[Schedule] = []
    if chunks == 1:
        trips = _round_trips(costs, devices)
        tried = [_ahead(devices, extra, trips) for extra in (extra_in_flight, extra_in_flight // 2)]
        tried.append(_ahead_by_time(limit - 1, trips, costs))
        for ahead in tried:
            candidates += [running_ahead(ahead, micro_batches, limit, split) for split in (False, True)]
    else:
        candidates += _in_groups(devices, micro_batches, chunks, extra_in_flight * chunks, costs)
    if not candidates or 3 * devices * chunks * micro_batches <= GREEDY_OPERATIONS:
        held = costs.activation or (1.0,) * (devices * chunks)
        # The interleaved schedule's memory, p - 1 micro-batches of one chunk above 1F1B's.
        units = [
            sum(held[device::devices]) * limit
            + (max(held[device::devices]) * (devices - 1) if chunks > 1 else 0)
            for device in range(devices)
        ]
        candidates.append(
            greedy_schedule(costs, devices, micro_batches, chunks, units, policy=GreedyPolicy())
        )

    def seconds(schedule: Schedule) -> float:
        try:
            return simulate(schedule, costs).step_seconds
        except PlanError:  # ran so far ahead that devices wait for each other
            return inf

    return replace(min(candidates, key=seconds), name="long-link")


def _in_groups(devices: int, micro_batches: int, chunks: int, extra: int, costs: StepCosts) -> list[Schedule]:
    """Interleaved orders that spend `extra` micro-batches of one chunk on larger groups, so that a
    micro-batch comes back for its next chunk later, and on forwards that run ahead before the slow
    boundary."""
    room = extra // (chunks - 1)
    groups = [size for size in range(devices, devices + room + 1) if micro_batches % size == 0]
    trips = _round_trips(costs, devices)
    schedules = []
    for group in dict.fromkeys((*groups[:2], *groups[-1:])):
        left = extra - (chunks - 1) * (group - devices)
        for ahead in sorted({0, left // 2, min(left, group), left}):
            share = [round(ahead * trip / (trips[0] or 1.0)) for trip in trips]
            schedules.append(interleaved(devices, micro_batches, chunks, group=group, ahead=share))
    return schedules


def running_ahead(ahead: list[int], micro_batches: int, limit: int, split: bool) -> Schedule:
    """1F1B with `ahead[i]` forwards before the first backward of device i. With `split`, weight gradients lag
    as far behind as a limit on micro-batches held allows."""
    devices = len(ahead)
    segments: list[tuple[Segment, ...]] = []
    for device in range(devices):

        def op(kind: Kind, micro_batch: int, device: int = device) -> Op:
            return Op(kind, device, 0, micro_batch)

        first = min(ahead[device], micro_batches)
        if not split:
            steady = micro_batches - first
            segments.append(
                (
                    Segment((op("F", 0),), first, 1),
                    Segment((op("F", first), op("BW", 0)), steady, 1),
                    Segment((op("BW", steady),), first, 1),
                )
            )
            continue
        lag = max(0, min(limit - 1 - first, micro_batches - first))
        steady = micro_batches - first - lag
        segments.append(
            (
                Segment((op("F", 0),), first, 1),
                Segment((op("F", first), op("B", 0)), lag, 1),
                Segment((op("F", first + lag), op("B", lag), op("W", 0)), steady, 1),
                Segment((op("B", micro_batches - first), op("W", steady)), first, 1),
                Segment((op("W", steady + first),), lag, 1),
            )
        )
    return Schedule("long-link", devices, 1, micro_batches, tuple(segments), tuple(range(devices)))


def _ahead(devices: int, extra: int, trips: list[float]) -> list[int]:
    """Forwards before the first backward: one for each device behind, and of the extra ones the share of the
    round trip that still lies ahead."""
    whole = trips[0] or 1.0
    return [devices - 1 - device + round(extra * trips[device] / whole) for device in range(devices - 1)] + [
        0
    ]


def _ahead_by_time(most: int, trips: list[float], costs: StepCosts) -> list[int]:
    """All that memory allows, dealt out by the time from each device to the last and back, computing too."""
    times = [0.0] * len(trips)
    for device in range(len(trips) - 2, -1, -1):
        computing = costs.forward[device + 1] + costs.backward_input[device + 1]
        times[device] = times[device + 1] + computing + trips[device] - trips[device + 1]
    whole = times[0] or 1.0
    return [max(len(trips) - 1 - device, round(most * time / whole)) for device, time in enumerate(times)]


def _round_trips(costs: StepCosts, devices: int) -> list[float]:
    """By device: seconds that messages take from there to the last device and back."""
    trips = [0.0] * devices
    for device in range(devices - 2, -1, -1):
        here = 0.0
        for transfers in (costs.forward_transfers, costs.backward_transfers):
            transfer = transfers[device] if transfers else None
            if transfer is not None:
                here += transfer.seconds + transfer.latency_seconds
        trips[device] = trips[device + 1] + here
    return trips
