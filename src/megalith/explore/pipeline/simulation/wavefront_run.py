"""Follows a step row by row (`waves`): the quick way for pipelines of many devices.

Each row is the maximum of what its devices finished and what has come to them, plus seconds. What copies
exchange once a step has links of its own and is counted before and after. Where devices share a link, how
long messages queue is not known beforehand: rows are followed with the queues of the time before, messages
are put in the order of the time they became ready, and again, until the queues stay the same. A step in
which every queue is as its messages make it is what the event simulation finds, to the last bit, since times
lie on the grid of `compiler`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from megalith.explore.pipeline.costs import Collective, StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.compiler import Compiler
from megalith.explore.pipeline.simulation.program import Message
from megalith.explore.pipeline.simulation.record import send_message
from megalith.explore.pipeline.simulation.wavefronts import Waves, waves_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

_LINK_ORDERS = 4
"""Kept with a schedule: one for each way of laying it over a cluster."""
_MOST_ROUNDS = 20
_MOST_CHANGED = 0.25
"""Queues on shared links that have not settled by then, or where so large a share of the messages changed at
once, as on links that are always full, are left to the event simulation."""


@dataclass(slots=True)
class WaveRun:
    """By device, what `simulate.assemble` asks for."""

    compute: list[float]
    starts: list[float]
    compute_ends: list[float]
    reduce_ends: list[float]
    transfers: list[float]
    first_waits: list[float]
    fetches: list[float]
    first_fetches: list[float]
    reduces: list[float]
    optimizer: list[float]
    link_busy: dict[Hashable, float]

    def by_name(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(slots=True)
class _Links:
    """Who sends when on which link, for one way of giving links to slots. Places of second messages (of FB)
    follow those of first ones."""

    before: Integers
    """Place -> place of the message before it on its link, 0: none; only of links with one sender."""
    shared: list[tuple[int, Integers]]
    """Of every link with several senders its number and the places that send over it, by device."""


@dataclass(slots=True)
class _Fetch:
    """Parameters asked for when the step begins, in as many pieces as the first operation of their chunk."""

    row: int
    device: int
    first: float
    """When the first piece is there."""
    least_end: float
    """The operation cannot end before this."""


def run_waves(schedule: Schedule, costs: StepCosts, grid: float) -> WaveRun | None:
    """The step, or None where it takes another way: collectives with every operation or on links that
    messages use too, queues that do not settle, an order that never ends."""
    if not _only_once_a_step(costs):
        return None
    waves = waves_of(schedule)
    return None if waves is None else _WaveRunner(schedule, costs, grid, waves).run()


def _only_once_a_step(costs: StepCosts) -> bool:
    collectives = (*costs.gradient.values(), *costs.parameters.values())
    if any(one.each != "step" for one in collectives) or (costs.parameters and not costs.overlap):
        return False
    transfers = {t.link for t in (*costs.forward_transfers, *costs.backward_transfers) if t is not None}
    owners: dict[Hashable, int] = {}
    return all(
        one.link not in transfers and owners.setdefault(one.link, device) == device
        for part in (costs.gradient, costs.parameters)
        for (device, _), one in part.items()
    )


class _WaveRunner:
    def __init__(self, schedule: Schedule, costs: StepCosts, grid: float, waves: Waves) -> None:
        self.schedule, self.costs, self.waves = schedule, costs, waves
        compiler = self.compiler = Compiler(schedule, costs, grid)
        compiler.add_base_slots()
        second: list[Message | None] = [None] * len(compiler.seconds)
        for stage, back in waves.pairs:
            compiler.pair_slot(stage, back)
            second.append(compiler.messages[schedule.stages + back])
        compiler.new_slot(0.0, None, ("", 0))  # a blank
        second.append(None)
        self.blocks = [compiler.messages, second] if waves.pairs else [compiler.messages]
        self.transfer_links = len(compiler.links)
        self.seconds = np.array(compiler.seconds)[waves.slots]
        shape = len(self.blocks), waves.rows, waves.devices
        self.starts, self.ends = np.zeros(shape[1:]), np.zeros(shape[1:])
        self.taken, self.latency = self._by_place(1), self._by_place(2)
        self.free, self.arrival = np.zeros(shape), np.zeros(shape)
        """By place: until when a message takes its link, and when the far side has it."""
        self.lane_free: list[float] = []
        self.lane_busy: list[float] = []

    def run(self) -> WaveRun | None:
        fetches = self._fetch_first()
        if fetches is None:
            return None
        floors: dict[int, Floats] = {}
        for fetch in fetches:
            floors.setdefault(fetch.row, np.zeros(self.waves.devices))[fetch.device] = fetch.least_end
        if not self._settle(self._links(), floors):
            return None
        return self._result(fetches)

    def _by_place(self, part: int) -> Floats:
        values = [[message[part] if message else 0.0 for message in block] for block in self.blocks]
        return np.ascontiguousarray(
            np.array(values)[:, self.waves.slots]
        )  # places are numbered in this order

    # Links

    def _links(self) -> _Links:
        numbers = [[message[0] if message else -1 for message in block] for block in self.blocks]
        key = (*(number for block in numbers for number in block), -2, *sorted(self.compiler.shared_links))
        known = self.waves.link_orders
        if key not in known:
            while len(known) >= _LINK_ORDERS:
                known.pop(next(iter(known)))
            known[key] = self._find_links(np.ascontiguousarray(np.array(numbers)[:, self.waves.slots]))
        found: _Links = known[key]
        return found

    def _find_links(self, links: Integers) -> _Links:
        """From the link of every place, -1: none."""
        blocks, rows, devices = links.shape
        shared = []
        for number in sorted(self.compiler.shared_links):
            places = np.flatnonzero(links == number)
            device = places % devices
            shared.append((number, places[np.argsort(device, kind="stable")]))
            links[links == number] = -1
        # A device sends in the order of rows, and in a row the second message after the first.
        turns = links.transpose(1, 0, 2).reshape(blocks * rows, devices)
        before = np.zeros_like(turns)
        turn = np.arange(blocks * rows)[:, None]
        own: list[list[int]] = [sorted(set(column) - {-1}) for column in turns.T.tolist()]
        for rank in range(max(map(len, own))):
            wanted = np.array([mine[rank] if rank < len(mine) else -2 for mine in own])
            mask = turns == wanted
            last = np.maximum.accumulate(np.where(mask, turn, 0), axis=0)
            before[1:][mask[1:]] = last[:-1][mask[1:]]
        row, block = np.divmod(before, blocks)
        places = np.where(before > 0, (block * rows + row) * devices + np.arange(devices), 0)
        return _Links(places.reshape(rows, blocks, devices).transpose(1, 0, 2).copy(), shared)

    def _settle(self, links: _Links, floors: dict[int, Floats]) -> bool:
        """Follows the step until queues on shared links are what its messages make them."""
        if not links.shared:
            self._follow(links, floors)
            return True
        devices, places = self.waves.devices, self.waves.rows * self.waves.devices
        if not all(self.compiler.seconds[slot] > 0 for slot in np.flatnonzero(self.waves.counts)):
            return False  # things that happen at one time would be a matter of taste
        taken, latency = self.taken.reshape(-1), self.latency.reshape(-1)
        sent = [(at, taken[at].copy(), latency[at].copy()) for _, at in links.shared]
        for at, seconds, _ in sent:
            taken[at] = 0.0
            latency[at] += seconds
        messages = sum(len(at) for at, _, _ in sent)
        for _ in range(_MOST_ROUNDS):
            self._follow(links, floors)
            changed = 0
            for at, seconds, late in sent:
                ready = self.ends.reshape(-1)[at % places]
                order = np.lexsort((at % devices, ready))
                before = np.cumsum(seconds[order]) - seconds[order]
                through = np.maximum.accumulate(ready[order] - before) + before + seconds[order]
                delay = np.empty_like(ready)
                delay[order] = through - ready[order]
                delay += late
                changed += int(np.count_nonzero(delay != latency[at]))
                latency[at] = delay
            if changed == 0 or changed > _MOST_CHANGED * messages:
                return changed == 0
        return False

    def _follow(self, links: _Links, floors: dict[int, Floats]) -> None:
        """Start, end and arrival of everything, row by row."""
        waves = self.waves
        arrival, free = self.arrival.reshape(-1), self.free.reshape(-1)
        came, queued = np.zeros(waves.devices), np.zeros(waves.devices)
        maximum, add, came_by, free_by = np.maximum, np.add, arrival.take, free.take
        rows = zip(
            waves.needs,
            self.starts,
            self.seconds,
            self.ends,
            links.before[0],
            self.taken[0],
            self.free[0],
            self.latency[0],
            self.arrival[0],
            strict=True,
        )
        clock = self.ends[0]
        second_needs = waves.second_needs
        for row, (needs, start, seconds, end, before, taken, through, latency, there) in enumerate(rows):
            if not row:
                continue
            came_by(needs, out=came, mode="clip")
            maximum(came, clock, out=start)
            if second_needs is not None:
                came_by(second_needs[row], out=came, mode="clip")
                maximum(came, start, out=start)
            add(start, seconds, out=end)
            if row in floors:
                maximum(end, floors[row], out=end)
            clock = end
            free_by(before, out=queued, mode="clip")
            maximum(queued, clock, out=queued)
            add(queued, taken, out=through)
            add(through, latency, out=there)
            if second_needs is not None:
                free_by(links.before[1][row], out=queued, mode="clip")
                maximum(queued, clock, out=queued)
                add(queued, self.taken[1][row], out=self.free[1][row])
                add(self.free[1][row], self.latency[1][row], out=self.arrival[1][row])

    # What copies exchange

    def _pieces(self, collective: Collective, device: int, pieces: int) -> Message:
        link, seconds, latency = self.compiler.message_of(device, collective)
        while len(self.lane_free) <= link:
            self.lane_free.append(0.0)
            self.lane_busy.append(0.0)
        return link, self.compiler.round_seconds(seconds / pieces), latency

    def _parts(self, row: int, device: int, pieces: int) -> tuple[float, float]:
        """An operation in equal parts: the seconds of each, and of the last."""
        seconds = float(self.seconds[row, device])
        part = self.compiler.round_seconds(seconds / pieces)
        return part, seconds - (pieces - 1) * part

    def _fetch_first(self) -> list[_Fetch] | None:
        waves, found = self.waves, []
        reduced = {
            (waves.last_weights[key], key[0]) for key in self.costs.gradient if key in waves.last_weights
        }
        wanted = [(device, waves.first_uses[device, chunk], one) for (device, chunk), one in self._fetched()]
        for device, row, one in sorted(wanted, key=lambda entry: entry[:2]):
            if (row, device) in reduced:
                return None
            pieces = one.buckets
            message = self._pieces(one, device, pieces)
            part, last = self._parts(row, device, pieces)
            ends = [send_message(message, 0.0, self.lane_free, self.lane_busy) for _ in range(pieces)]
            rest = [(pieces - 1 - piece) * part + last for piece in range(pieces)]
            least = max(end + left for end, left in zip(ends, rest, strict=True))
            found.append(_Fetch(row, device, ends[0], least))
        return found

    def _fetched(self) -> list[tuple[tuple[int, int], Collective]]:
        return [(key, one) for key, one in self.costs.parameters.items() if key in self.waves.first_uses]

    def _reduce_last(self) -> list[float]:
        """By device: when the last gradients are there."""
        waves, ends = self.waves, [0.0] * self.waves.devices
        wanted = [
            (device, waves.last_weights[device, chunk], one)
            for (device, chunk), one in self.costs.gradient.items()
            if (device, chunk) in waves.last_weights
        ]
        for device, row, one in sorted(wanted, key=lambda entry: entry[:2]):
            pieces = one.buckets if self.costs.overlap else 1
            message = self._pieces(one, device, pieces)
            part, _ = self._parts(row, device, pieces)
            for piece in range(pieces):
                ready = float(self.ends[row, device])
                if not self.costs.overlap:
                    ready = float(self.ends[-1, device])
                elif piece < pieces - 1:
                    ready = float(self.starts[row, device]) + (piece + 1) * part
                end = send_message(message, ready, self.lane_free, self.lane_busy)
                ends[device] = max(ends[device], end)
        return ends

    # What it was like

    def _result(self, fetches: list[_Fetch]) -> WaveRun:
        waves, devices = self.waves, self.waves.devices
        at = waves.first_rows, np.arange(devices)
        waits = self._waits()
        starts = self.starts[at].tolist()
        fetched, first_fetched = [0.0] * devices, [0.0] * devices
        for fetch in fetches:
            row, device = fetch.row, fetch.device
            began = float(self.starts[row, device])
            fetched[device] += float(self.ends[row, device]) - began - float(self.seconds[row, device])
            if row == waves.first_rows[device] and fetch.first > began:
                first_fetched[device] = fetch.first - began
                starts[device] = fetch.first
        reduce_ends = self._reduce_last()
        busy: dict[Hashable, float] = dict.fromkeys(self.compiler.links, 0.0)
        names = list(self.compiler.links)
        for block in self.blocks:
            for slot, message in enumerate(block):
                if message is not None and waves.counts[slot]:
                    busy[names[message[0]]] += int(waves.counts[slot]) * message[1]
        for number, seconds in enumerate(self.lane_busy):
            busy[names[number]] += seconds
        optimizer = self.costs.optimizer_seconds or (0.0,) * devices
        return WaveRun(
            compute=self.seconds.sum(axis=0).tolist(),
            starts=starts,
            compute_ends=self.ends[-1].tolist(),
            reduce_ends=reduce_ends,
            transfers=waits.sum(axis=0).tolist(),
            first_waits=waits[at].tolist(),
            fetches=fetched,
            first_fetches=first_fetched,
            reduces=[0.0] * devices,
            optimizer=[self.compiler.round_seconds(seconds) for seconds in optimizer],
            link_busy=busy,
        )

    def _waits(self) -> Floats:
        """By place: waiting for a message that was on its way."""
        waves = self.waves
        gap = np.zeros_like(self.starts)
        gap[1:] = self.starts[1:] - self.ends[:-1]
        delays = (self.arrival - self.ends).reshape(-1)
        delay = delays[waves.needs]
        if waves.second_needs is not None:
            arrival = self.arrival.reshape(-1)
            later = arrival[waves.second_needs] > arrival[waves.needs]
            delay = np.where(later, delays[waves.second_needs], delay)
        waits: Floats = np.minimum(gap, delay)
        return waits
