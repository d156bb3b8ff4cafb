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
            need = needs[index]
            extra = None
            if op_type >= first_extra_type:
                extra = extras[index]
                need = extras_run.await_messages(extra, need, device, index, clock)
                if need < 0:
                    break
            start = arrival[need]
            if start < 0.0:
                waiting[need] = device
                break
            if start > clock:
                gap, on_its_way = start - clock, delay[need]
                wait += on_its_way if on_its_way < gap else gap
            else:
                start = clock
            if extra is not None:
                start = extras_run.await_parameters(extra, device, index, start)
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
                clock = extras_run.finish(extra, device, clock, is_last=index + 1 == len(op_types))
        else:
            index = len(op_types)
            extras_run.reduce_last(device, clock)
            run.compute_ends[device] = clock
        positions[device], clocks[device], waited[device] = index, clock, wait
    check_finished(schedule, program, positions)
    return run


class _ExtrasRun:
    """What operations have to do with collectives and second messages, for the loop above.

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

    def await_messages(self, extra: OperationExtras, need: int, device: int, index: int, clock: float) -> int:
        """The later of the messages that an operation needs; -1 if one is not sent yet."""
        if extra.needs_fetch is not None and self.pending[device] != index:
            self.pending[device] = index
            self.pending_end[device] = send_message(
                extra.needs_fetch, clock, self.link_free, self.run.link_busy
            )
        second_need = extra.second_needs
        if not second_need:
            return need
        arrival = self.run.arrival
        for message in (need, second_need):
            if arrival[message] < 0.0:
                self.waiting[message] = device
                return -1
        return second_need if arrival[second_need] > arrival[need] else need

    def await_parameters(self, extra: OperationExtras, device: int, index: int, start: float) -> float:
        """When an operation begins that has its messages at `start`; asks for the next one's parameters."""
        run = self.run
        fetch_end = 0.0
        if extra.early_fetch >= 0:
            fetch_end = self.fetched[device][extra.early_fetch]
        elif extra.needs_fetch is not None:
            fetch_end = self.pending_end[device]
        if fetch_end > start:
            run.fetch_waits[device] += fetch_end - start
            if index == 0:
                run.first_fetch_waits[device] = fetch_end - start
            start = fetch_end
        if extra.prefetch is not None:
            self.pending[device] = index + 1
            self.pending_end[device] = send_message(extra.prefetch, start, self.link_free, run.link_busy)
        return start

    def finish(self, extra: OperationExtras, device: int, clock: float, *, is_last: bool) -> float:
        """Sends what else an operation sends when it ends; when the device can go on."""
        run = self.run
        if extra.second_sends:
            send, arrived = extra.second_sends, clock
            if extra.second_message is not None:
                arrived = send_message(extra.second_message, clock, self.link_free, run.link_busy)
            run.arrival[send] = arrived
            self.delay[send] = arrived - clock
            if send in self.waiting:
                self.ready.append(self.waiting.pop(send))
        if extra.reduce is not None:
            end = send_message(extra.reduce, clock, self.link_free, run.link_busy)
            run.reduce_ends[device] = max(run.reduce_ends[device], end)
            if extra.waits_for_reduce and not is_last:
                run.reduce_waits[device] += end - clock
                return end
        return clock

    def reduce_last(self, device: int, clock: float) -> None:
        """Gradients that leave after the last operation."""
        for reduce in self.program.last_reduces[device]:
            end = send_message(reduce, clock, self.link_free, self.run.link_busy)
            self.run.reduce_ends[device] = max(self.run.reduce_ends[device], end)
