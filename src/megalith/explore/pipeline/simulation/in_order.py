"""Runs a program in which every link has one sender: the fast loop.

A device sends in the order it computes. So each device can be followed as far as its messages have come,
whatever the time on the others, and no queue of events is needed. `timed` gives the same wherever both apply.
"""

from __future__ import annotations

from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import Program
from megalith.explore.pipeline.simulation.record import (
    Run,
    check_finished,
    fetch_first,
    new_run,
    send_message,
)


def run_ordered(schedule: Schedule, program: Program) -> Run:
    """Runs a program in which no two devices share a link."""
    devices = schedule.devices
    run = new_run(devices, program)
    link_free = [0.0] * len(program.links)
    link_busy, arrival = run.link_busy, run.arrival
    delay = [0.0] * program.message_count
    waiting: dict[int, int] = {}
    fetched = fetch_first(program, run, link_free)
    seconds, messages, odd_slot = program.seconds, program.messages, program.odd_slot
    positions = [0] * devices
    clocks = [0.0] * devices
    waited = [0.0] * devices
    pending = [-1] * devices  # the operation whose parameters were last asked for, and when they are there
    pending_end = [0.0] * devices
    ready = list(range(devices - 1, -1, -1))
    while ready:
        device = ready.pop()
        needs, sends, slots = program.needs[device], program.sends[device], program.slots[device]
        specials = program.specials[device]
        starts_append = run.starts[device].append
        waits_append = run.transfer_waits[device].append
        clock, wait = clocks[device], waited[device]
        index = positions[device]
        for index in range(index, len(slots)):  # noqa: B020  goes on where this device stopped
            slot = slots[index]
            if slot >= odd_slot:
                special = specials[index]
                fetch = special.needs_fetch
                if fetch is not None and pending[device] != index:
                    pending[device] = index
                    pending_end[device] = send_message(fetch, clock, link_free, link_busy)
            else:
                special = None
            need = needs[index]
            start = arrival[need]
            if start < 0.0:
                waiting[need] = device
                break
            if special is not None and special.second_needs:
                second = arrival[special.second_needs]
                if second < 0.0:
                    waiting[special.second_needs] = device
                    break
                if second > start:
                    need, start = special.second_needs, second
            if start > clock:
                gap, on_its_way = start - clock, delay[need]
                wait += on_its_way if on_its_way < gap else gap
            else:
                start = clock
            if special is not None:
                fetch_end = 0.0
                if special.early_fetch >= 0:
                    fetch_end = fetched[device][special.early_fetch]
                elif special.needs_fetch is not None:
                    fetch_end = pending_end[device]
                if fetch_end > start:
                    run.fetch_waits[device] += fetch_end - start
                    if index == 0:
                        run.first_fetch_waits[device] = fetch_end - start
                    start = fetch_end
                if special.prefetch is not None:
                    pending[device] = index + 1
                    pending_end[device] = send_message(special.prefetch, start, link_free, link_busy)
            starts_append(start)
            waits_append(wait)
            clock = start + seconds[slot]
            send = sends[index]
            if send:
                message = messages[slot]
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
            if special is not None:
                if special.second_sends:
                    send = special.second_sends
                    arrived = clock
                    if special.second_message is not None:
                        arrived = send_message(special.second_message, clock, link_free, link_busy)
                    arrival[send] = arrived
                    delay[send] = arrived - clock
                    if send in waiting:
                        ready.append(waiting.pop(send))
                if special.reduce is not None:
                    end = send_message(special.reduce, clock, link_free, link_busy)
                    run.reduce_ends[device] = max(run.reduce_ends[device], end)
                    if special.waits_for_reduce and index + 1 < len(slots):
                        run.reduce_waits[device] += end - clock
                        clock = end
        else:
            index = len(slots)
            for reduce in program.last_reduces[device]:
                end = send_message(reduce, clock, link_free, link_busy)
                run.reduce_ends[device] = max(run.reduce_ends[device], end)
            run.compute_ends[device] = clock
        positions[device], clocks[device], waited[device] = index, clock, wait
    check_finished(schedule, program, positions)
    return run
