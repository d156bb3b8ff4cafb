"""Runs any program event by event, in the order of time.

Links with several senders need this: who is ready first sends first. It can also write down what happened,
and watch for a state that it has seen before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import Message, OperationExtras, Program
from megalith.explore.pipeline.simulation.record import (
    RunRecord,
    check_finished,
    fetch_first,
    new_record,
    send_message,
)


@dataclass(slots=True)
class StateWatch:
    """Looks, once in each turn of device 0's body, whether everything is as it was some turns before."""

    firsts: list[int]
    """By device: where the second turn of its body begins."""
    lengths: list[int]
    """Operations (or parts of them) in a turn."""
    lasts: list[int]
    """Where the last turn of its body begins."""
    shift: int
    next_position: int
    turn: int = 0
    seen: dict[object, tuple[int, float, tuple[list[float], ...]]] = field(default_factory=dict)
    period: tuple[int, float, tuple[list[float], ...]] | None = None
    """Turns and seconds of the period; what waiting for transfers, parameters and gradients grew by."""


_START, _END, _RESUME = 0, 1, 2


def run_events(
    schedule: Schedule, program: Program, *, record: bool = False, watch: StateWatch | None = None
) -> RunRecord:
    """Runs any program, event by event."""
    return _EventRun(schedule, program, record, watch).run()


class _EventRun:
    """State of one run: what each device is doing, what is on its way, what comes next."""

    def __init__(self, schedule: Schedule, program: Program, record: bool, watch: StateWatch | None) -> None:
        self.schedule = schedule
        self.program = program
        self.record = record
        devices = schedule.devices
        self.out = new_record(devices, program)
        self.link_free = [0.0] * len(program.links)
        self.arrival = self.out.arrival
        self.delay = [0.0] * program.message_count
        self.waiting: dict[int, int] = {}
        self.positions = [0] * devices
        self.clocks = [0.0] * devices
        self.waited = [0.0] * devices
        self.pending = [(-1, 0.0)] * devices
        """The operation whose parameters were last asked for, and when they are there."""
        self.events: list[tuple[float, int, int]] = []
        """Time, what (START, END or RESUME), device."""
        self.watch = watch
        self.unused: dict[int, float] = {}
        """Messages that were sent and not yet used: when they are there."""

    def run(self) -> RunRecord:
        sent = self.out.sent if self.record else None
        self.fetched = fetch_first(self.program, self.out, self.link_free, sent)
        for device in range(self.schedule.devices):
            self._try_start(device)
        events, watch = self.events, self.watch
        while events:
            time, event, device = heappop(events)
            if event == _END:
                self._end(device, time)
            elif event == _RESUME:
                self._try_start(device)
            else:
                index = self.positions[device]
                prefetch = self.program.extras[device][index].prefetch
                assert prefetch is not None
                end = self._send(prefetch, time, "parameters", device, index + 1)
                self.pending[device] = (index + 1, end)
            if watch is not None and self.positions[0] >= watch.next_position:
                self._take_snapshot(watch, time)
        check_finished(self.schedule, self.program, self.positions)
        return self.out

    def _try_start(self, device: int) -> None:
        program, index = self.program, self.positions[device]
        op_types = program.op_types[device]
        if index == len(op_types):
            clock = self.clocks[device]
            for reduce in program.last_reduces[device]:
                self._reduce(reduce, clock, device, index - 1)
            self.out.compute_ends[device] = clock
            return
        op_type = op_types[index]
        clock = self.clocks[device]
        extra = program.extras[device][index] if op_type >= program.first_extra_type else None
        fetch = extra.needs_fetch if extra is not None else None
        if fetch is not None and self.pending[device][0] != index:
            self.pending[device] = (index, self._send(fetch, clock, "parameters", device, index))
        need = program.needs[device][index]
        start = self.arrival[need]
        if start < 0.0:
            self.waiting[need] = device
            return
        if extra is not None and extra.second_needs:
            second = self.arrival[extra.second_needs]
            if second < 0.0:
                self.waiting[extra.second_needs] = device
                return
            if second > start:
                need, start = extra.second_needs, second
        if start > clock:
            self.waited[device] += min(self.delay[need], start - clock)
        else:
            start = clock
        if extra is not None:
            fetch_end = self._fetch_end(extra, device)
            if fetch_end > start:
                self.out.fetch_waits[device] += fetch_end - start
                if index == 0:
                    self.out.first_fetch_waits[device] = fetch_end - start
                start = fetch_end
            if extra.prefetch is not None:
                heappush(self.events, (start, _START, device))
        if self.watch is not None:
            self.unused.pop(program.needs[device][index], None)
            if extra is not None:
                self.unused.pop(extra.second_needs, None)
        self.out.starts[device].append(start)
        self.out.transfer_waits[device].append(self.waited[device])
        heappush(self.events, (start + program.seconds[op_type], _END, device))

    def _fetch_end(self, extra: OperationExtras, device: int) -> float:
        if extra.early_fetch >= 0:
            return self.fetched[device][extra.early_fetch]
        return 0.0 if extra.needs_fetch is None else self.pending[device][1]

    def _end(self, device: int, time: float) -> None:
        program, index = self.program, self.positions[device]
        op_type = program.op_types[device][index]
        self.clocks[device] = time
        self.positions[device] = index + 1
        woken: list[int] = []
        resume = time
        kind = "forward" if program.labels[op_type][0] in ("F", "FB") else "backward"
        self._deliver(
            program.sends[device][index], program.messages[op_type], time, kind, device, index, woken
        )
        if op_type >= program.first_extra_type:
            extra = program.extras[device][index]
            second = extra.second_sends
            self._deliver(second, extra.second_message, time, "backward", device, index, woken)
            if extra.reduce is not None:
                end = self._reduce(extra.reduce, time, device, index)
                if extra.waits_for_reduce and index + 1 < len(program.op_types[device]):
                    self.out.reduce_waits[device] += end - time
                    resume = self.clocks[device] = end
        for other in woken:
            self._try_start(other)
        if resume > time:
            heappush(self.events, (resume, _RESUME, device))
        else:
            self._try_start(device)

    def _deliver(
        self,
        send: int,
        message: Message | None,
        time: float,
        kind: str,
        device: int,
        index: int,
        woken: list[int],
    ) -> None:
        if not send:
            return
        end = time if message is None else self._send(message, time, kind, device, index)
        self.arrival[send] = end
        self.delay[send] = end - time
        if self.watch is not None:
            self.unused[send] = end
        if send in self.waiting:
            woken.append(self.waiting.pop(send))

    def _reduce(self, message: Message, time: float, device: int, index: int) -> float:
        end = self._send(message, time, "gradient", device, index)
        self.out.reduce_ends[device] = max(self.out.reduce_ends[device], end)
        return end

    def _take_snapshot(self, watch: StateWatch, now: float) -> None:
        """Everything that decides what comes next, relative to this moment and this turn."""
        turn = watch.turn
        watch.turn += 1
        watch.next_position += watch.lengths[0]
        offsets = [
            position - first - turn * length
            for position, first, length in zip(self.positions, watch.firsts, watch.lengths, strict=True)
        ]
        inside = all(
            first <= position < last
            for position, first, last in zip(self.positions, watch.firsts, watch.lasts, strict=True)
        )
        if watch.period is not None or not inside or self.out.first_fetch_end > now:
            return
        count, moved = self.program.micro_batches, turn * watch.shift
        state = (
            tuple(offsets),
            tuple(clock - now for clock in self.clocks),
            tuple(
                (asked - position, end - now) if asked >= position else (-1, 0.0)
                for (asked, end), position in zip(self.pending, self.positions, strict=True)
            ),
            tuple(max(free - now, 0.0) for free in self.link_free),
            tuple(sorted((time - now, event, device) for time, event, device in self.events)),
            tuple(
                sorted(
                    ((number - 1) // count, (number - 1) % count - moved, end - now, self.delay[number])
                    for number, end in self.unused.items()
                )
            ),
        )
        out = self.out
        sums = (list(self.waited), list(out.fetch_waits), list(out.reduce_waits))
        before = watch.seen.get(state)
        if before is None:
            watch.seen[state] = (turn, now, sums)
            return
        since, then, old = before
        grown = tuple(
            [new - past for new, past in zip(now_waited, then_waited, strict=True)]
            for now_waited, then_waited in zip(sums, old, strict=True)
        )
        watch.period = (turn - since, now - then, grown)

    def _send(self, message: Message, time: float, kind: str, device: int, index: int) -> float:
        end = send_message(message, time, self.link_free, self.out.link_busy)
        if self.record:
            free = self.link_free[message[0]]
            self.out.sent.append((message[0], kind, device, index, free - message[1], free))
        return end
