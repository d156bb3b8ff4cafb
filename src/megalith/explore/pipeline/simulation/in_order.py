"""Runs a program in which every link has one sender: the fast loop.

A device sends in the order it computes. So each device can be followed as far as its messages have come,
whatever the time on the others, and no queue of events is needed. `events` gives the same wherever both
apply.
"""

from __future__ import annotations

from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import OperationExtras, Program
from megalith.explore.pipeline.simulation.record import (
    RunRecord,
    check_finished,
    fetch_first,
    new_record,
    send_message,
)


def run_in_order(schedule: Schedule, program: Program) -> RunRecord:
    """Runs a program in which no two devices share a link."""
    devices = schedule.devices
    run = new_record(devices, program)
    extras_run = _ExtrasRun(program, run, devices)
    link_free, link_busy, arrival = extras_run.link_free, run.link_busy, run.arrival
    delay, waiting, ready = extras_run.delay, extras_run.waiting, extras_run.ready
    pending, pending_end, reduce_ends = extras_run.pending, extras_run.pending_end, run.reduce_ends
    seconds, messages, first_extra_type = program.seconds, program.messages, program.first_extra_type
    positions = [0] * devices
    clocks = [0.0] * devices
    waited = [0.0] * devices
    while ready:
        device = ready.pop()
        needs, sends, op_types = program.needs[device], program.sends[device], program.op_types[device]
        extras = program.extras[device]
        starts_append = run.starts[device].append
        waits_append = run.transfer_waits[device].append
        clock, wait = clocks[device], waited[device]
        index = positions[device]
        for index in range(index, len(op_types)):  # noqa: B020  goes on where this device stopped
            op_type = op_types[index]
            if op_type >= first_extra_type:
                extra = extras[index]
                if extra.needs_fetch is not None and pending[device] != index:
                    pending[device] = index
                    pending_end[device] = send_message(extra.needs_fetch, clock, link_free, link_busy)
            else:
                extra = None
            need = needs[index]
            start = arrival[need]
            if start < 0.0:
                waiting[need] = device
                break
            if extra is not None and extra.second_needs:
                need = extras_run.await_second(need, extra.second_needs, device)
                if need < 0:
                    break
                start = arrival[need]
            if start > clock:
                gap, on_its_way = start - clock, delay[need]
                wait += on_its_way if on_its_way < gap else gap
            else:
                start = clock
            if extra is not None:
                if extra.early_fetch >= 0 or (extra.needs_fetch is not None and pending_end[device] > start):
                    start = extras_run.await_parameters(extra, device, index, start)
                if extra.prefetch is not None:
                    pending[device] = index + 1
                    pending_end[device] = send_message(extra.prefetch, start, link_free, link_busy)
            starts_append(start)
            waits_append(wait)
            clock = start + seconds[op_type]
            send = sends[index]
            if send:
                message = messages[op_type]
                if message is None:
                    arrival[send] = clock
                else:
                    link, taken, latency = message
                    begin = link_free[link]
                    if begin < clock:
                        begin = clock
                    begin += taken
                    link_free[link] = begin
                    link_busy[link] += taken
                    begin += latency
                    arrival[send] = begin
                    delay[send] = begin - clock
                if send in waiting:
                    ready.append(waiting.pop(send))
            if extra is not None:
                if extra.second_sends:
                    extras_run.send_second(extra, clock)
                if extra.reduce is not None:
                    end = send_message(extra.reduce, clock, link_free, link_busy)
                    if end > reduce_ends[device]:
                        reduce_ends[device] = end
                    if extra.waits_for_reduce and index + 1 < len(op_types):
                        run.reduce_waits[device] += end - clock
                        clock = end
        else:
            index = len(op_types)
            extras_run.reduce_last(device, clock)
            run.compute_ends[device] = clock
        positions[device], clocks[device], waited[device] = index, clock, wait
    check_finished(schedule, program, positions)
    return run


class _ExtrasRun:
    """The rarer things that operations do, for the loop above: second messages, waiting for parameters.

    It owns what both share: links, messages on their way, and devices that wait or can go on.
    """

    def __init__(self, program: Program, run: RunRecord, devices: int) -> None:
        self.program, self.run = program, run
        self.link_free = [0.0] * len(program.links)
        self.delay = [0.0] * program.message_count
        self.waiting: dict[int, int] = {}
        """Message -> the device that waits for it."""
        self.ready = list(range(devices - 1, -1, -1))
        self.fetched = fetch_first(program, run, self.link_free)
        self.pending = [-1] * devices
        """The operation whose parameters were last asked for, and when they are there."""
        self.pending_end = [0.0] * devices

    def await_second(self, need: int, second: int, device: int) -> int:
        """The later of the two messages that an FB needs; -1 if the second is not sent yet."""
        arrival = self.run.arrival
        if arrival[second] < 0.0:
            self.waiting[second] = device
            return -1
        return second if arrival[second] > arrival[need] else need

    def await_parameters(self, extra: OperationExtras, device: int, index: int, start: float) -> float:
        """When an operation begins that has its messages at `start`."""
        early = extra.early_fetch
        fetch_end = self.fetched[device][early] if early >= 0 else self.pending_end[device]
        if fetch_end <= start:
            return start
        self.run.fetch_waits[device] += fetch_end - start
        if index == 0:
            self.run.first_fetch_waits[device] = fetch_end - start
        return fetch_end

    def send_second(self, extra: OperationExtras, clock: float) -> None:
        """Sends what the backward half of an FB computed."""
        send, arrived = extra.second_sends, clock
        if extra.second_message is not None:
            arrived = send_message(extra.second_message, clock, self.link_free, self.run.link_busy)
        self.run.arrival[send] = arrived
        self.delay[send] = arrived - clock
        if send in self.waiting:
            self.ready.append(self.waiting.pop(send))

    def reduce_last(self, device: int, clock: float) -> None:
        """Gradients that leave after the last operation."""
        for reduce in self.program.last_reduces[device]:
            end = send_message(reduce, clock, self.link_free, self.run.link_busy)
            self.run.reduce_ends[device] = max(self.run.reduce_ends[device], end)
