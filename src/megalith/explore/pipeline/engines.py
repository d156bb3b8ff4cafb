"""The two loops that run a program; they agree wherever both apply.

`run_ordered` follows each device as far as its messages have come. That is right when every link has one
sender, since a device sends in the order it computes, and it is the faster one. `run_timed` takes events in
the order of time from a heap, as links with several senders need, and can write down what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from megalith.core.errors import PlanError
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.program import Message, Program, Special


@dataclass(slots=True)
class Run:
    """When every operation of every device started, and what it waited for."""

    starts: list[list[float]]
    transfer_waits: list[list[float]]
    """By device and operation: seconds waited so far for messages on their way."""
    fetch_waits: list[float]
    """By device: seconds waited for parameters."""
    first_fetch_waits: list[float]
    """The part of it before the first operation."""
    reduce_waits: list[float]
    """By device: seconds waited for gradients between operations."""
    compute_ends: list[float]
    reduce_ends: list[float]
    """By device: when the last gradients were there."""
    first_fetch_end: float
    """When the last parameters asked for at the beginning were there."""
    link_busy: list[float]
    arrival: list[float]
    """By message number: when it was there."""
    sent: list[tuple[int, str, int, int, float, float]] = field(default_factory=list)
    """Link, kind, device, operation, start and end of each message; only of `run_timed`."""


def run_ordered(schedule: Schedule, program: Program) -> Run:
    """Runs a program in which no two devices share a link."""
    devices = schedule.devices
    run = _new_run(devices, program)
    link_free = [0.0] * len(program.links)
    link_busy, arrival = run.link_busy, run.arrival
    delay = [0.0] * program.message_count
    waiting: dict[int, int] = {}
    fetched = _fetch_first(program, run, link_free)
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
                    pending_end[device] = _send(fetch, clock, link_free, link_busy)
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
                    pending_end[device] = _send(special.prefetch, start, link_free, link_busy)
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
                        arrived = _send(special.second_message, clock, link_free, link_busy)
                    arrival[send] = arrived
                    delay[send] = arrived - clock
                    if send in waiting:
                        ready.append(waiting.pop(send))
                if special.reduce is not None:
                    end = _send(special.reduce, clock, link_free, link_busy)
                    run.reduce_ends[device] = max(run.reduce_ends[device], end)
                    if special.waits_for_reduce and index + 1 < len(slots):
                        run.reduce_waits[device] += end - clock
                        clock = end
        else:
            index = len(slots)
            for reduce in program.last_reduces[device]:
                end = _send(reduce, clock, link_free, link_busy)
                run.reduce_ends[device] = max(run.reduce_ends[device], end)
            run.compute_ends[device] = clock
        positions[device], clocks[device], waited[device] = index, clock, wait
    _check_finished(schedule, program, positions)
    return run


@dataclass(slots=True)
class Watch:
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
    found: tuple[int, float, tuple[list[float], ...]] | None = None
    """Turns and seconds of the period; what waiting for transfers, parameters and gradients grew by."""


_START, _END, _RESUME = 0, 1, 2


def run_timed(
    schedule: Schedule, program: Program, *, record: bool = False, watch: Watch | None = None
) -> Run:
    """Runs any program, event by event."""
    return _Timed(schedule, program, record, watch).run()


class _Timed:
    def __init__(self, schedule: Schedule, program: Program, record: bool, watch: Watch | None) -> None:
        self.schedule = schedule
        self.program = program
        self.record = record
        devices = schedule.devices
        self.out = _new_run(devices, program)
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

    def run(self) -> Run:
        sent = self.out.sent if self.record else None
        self.fetched = _fetch_first(self.program, self.out, self.link_free, sent)
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
                prefetch = self.program.specials[device][index].prefetch
                assert prefetch is not None
                end = self._send(prefetch, time, "parameters", device, index + 1)
                self.pending[device] = (index + 1, end)
            if watch is not None and self.positions[0] >= watch.next_position:
                self._take_snapshot(watch, time)
        _check_finished(self.schedule, self.program, self.positions)
        return self.out

    def _try_start(self, device: int) -> None:
        program, index = self.program, self.positions[device]
        slots = program.slots[device]
        if index == len(slots):
            clock = self.clocks[device]
            for reduce in program.last_reduces[device]:
                self._reduce(reduce, clock, device, index - 1)
            self.out.compute_ends[device] = clock
            return
        slot = slots[index]
        clock = self.clocks[device]
        special = program.specials[device][index] if slot >= program.odd_slot else None
        fetch = special.needs_fetch if special is not None else None
        if fetch is not None and self.pending[device][0] != index:
            self.pending[device] = (index, self._send(fetch, clock, "parameters", device, index))
        need = program.needs[device][index]
        start = self.arrival[need]
        if start < 0.0:
            self.waiting[need] = device
            return
        if special is not None and special.second_needs:
            second = self.arrival[special.second_needs]
            if second < 0.0:
                self.waiting[special.second_needs] = device
                return
            if second > start:
                need, start = special.second_needs, second
        if start > clock:
            self.waited[device] += min(self.delay[need], start - clock)
        else:
            start = clock
        if special is not None:
            fetch_end = self._fetch_end(special, device)
            if fetch_end > start:
                self.out.fetch_waits[device] += fetch_end - start
                if index == 0:
                    self.out.first_fetch_waits[device] = fetch_end - start
                start = fetch_end
            if special.prefetch is not None:
                heappush(self.events, (start, _START, device))
        if self.watch is not None:
            self.unused.pop(program.needs[device][index], None)
            if special is not None:
                self.unused.pop(special.second_needs, None)
        self.out.starts[device].append(start)
        self.out.transfer_waits[device].append(self.waited[device])
        heappush(self.events, (start + program.seconds[slot], _END, device))

    def _fetch_end(self, special: Special, device: int) -> float:
        if special.early_fetch >= 0:
            return self.fetched[device][special.early_fetch]
        return 0.0 if special.needs_fetch is None else self.pending[device][1]

    def _end(self, device: int, time: float) -> None:
        program, index = self.program, self.positions[device]
        slot = program.slots[device][index]
        self.clocks[device] = time
        self.positions[device] = index + 1
        woken: list[int] = []
        resume = time
        kind = "forward" if program.labels[slot][0] in ("F", "FB") else "backward"
        self._deliver(program.sends[device][index], program.messages[slot], time, kind, device, index, woken)
        if slot >= program.odd_slot:
            special = program.specials[device][index]
            second = special.second_sends
            self._deliver(second, special.second_message, time, "backward", device, index, woken)
            if special.reduce is not None:
                end = self._reduce(special.reduce, time, device, index)
                if special.waits_for_reduce and index + 1 < len(program.slots[device]):
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

    def _take_snapshot(self, watch: Watch, now: float) -> None:
        """Everything that decides what comes next, relative to this moment and this turn."""
        turn = watch.turn
        watch.turn += 1
        watch.next_position += watch.lengths[0]
        places = [
            position - first - turn * length
            for position, first, length in zip(self.positions, watch.firsts, watch.lengths, strict=True)
        ]
        inside = all(
            first <= position < last
            for position, first, last in zip(self.positions, watch.firsts, watch.lasts, strict=True)
        )
        if watch.found is not None or not inside or self.out.first_fetch_end > now:
            return
        count, moved = self.program.micro_batches, turn * watch.shift
        state = (
            tuple(places),
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
            [new - past for new, past in zip(mine, other, strict=True)]
            for mine, other in zip(sums, old, strict=True)
        )
        watch.found = (turn - since, now - then, grown)

    def _send(self, message: Message, time: float, kind: str, device: int, index: int) -> float:
        end = _send(message, time, self.link_free, self.out.link_busy)
        if self.record:
            free = self.link_free[message[0]]
            self.out.sent.append((message[0], kind, device, index, free - message[1], free))
        return end


def _new_run(devices: int, program: Program) -> Run:
    return Run(
        starts=[[] for _ in range(devices)],
        transfer_waits=[[] for _ in range(devices)],
        fetch_waits=[0.0] * devices,
        first_fetch_waits=[0.0] * devices,
        reduce_waits=[0.0] * devices,
        compute_ends=[0.0] * devices,
        reduce_ends=[0.0] * devices,
        first_fetch_end=0.0,
        link_busy=[0.0] * len(program.links),
        arrival=[0.0] + [-1.0] * (program.message_count - 1),
    )


def _send(message: Message, time: float, link_free: list[float], link_busy: list[float]) -> float:
    """Queues a message that is ready at `time`; returns when the far side has it."""
    link, taken, latency = message
    end = max(link_free[link], time) + taken
    link_free[link] = end
    link_busy[link] += taken
    return end + latency


def _fetch_first(
    program: Program,
    run: Run,
    link_free: list[float],
    sent: list[tuple[int, str, int, int, float, float]] | None = None,
) -> list[list[float]]:
    """Asks for the parameters that are fetched when the step begins; returns when each is there."""
    ends: list[list[float]] = []
    for device, fetches in enumerate(program.first_fetches):
        ends.append([_send(message, 0.0, link_free, run.link_busy) for message in fetches])
        run.first_fetch_end = max([run.first_fetch_end, *ends[-1]])
        if sent is not None:
            for message, end in zip(fetches, ends[-1], strict=True):
                free = end - message[2]
                sent.append((message[0], "parameters", device, 0, free - message[1], free))
    return ends


def _check_finished(schedule: Schedule, program: Program, positions: list[int]) -> None:
    for device, position in enumerate(positions):
        if position < len(program.slots[device]):
            kind, stage = program.labels[program.slots[device][position]]
            need = program.needs[device][position]
            if need == 0 or (kind == "FB" and position in program.specials[device]):
                need = need or program.specials[device][position].second_needs
            micro_batch = (need - 1) % program.micro_batches
            raise PlanError(
                f"Schedule {schedule.name} can never finish: device {device} waits at its operation "
                f"{position} ({kind} of stage {stage}) for micro-batch {micro_batch} while the device that "
                "should send it waits too; put the operations of all devices in an order in which none waits "
                "for a later one."
            )
