"""A schedule and its costs as flat lists, ready for a tight loop.

Every message has a number: what forward operation (stage, micro-batch) waits for, then what backward ones
wait for; number 0 is always there. An operation is then three integers: the message it needs, the message it
sends, and its slot, which says how long it takes and over which link it sends. Operations beside which
collectives run are cut into as many parts as the collective has buckets.

All seconds are rounded to a binary grid fine enough (2^-52 of a bound on the step) that no sum of them is
ever rounded again. So the result does not depend on the order of additions, and a period of the steady state
can be skipped with exactly the result of running it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule, Segment

KINDS = ("F", "B", "W", "BW")

Message = tuple[int, float, float]
"""Link number, seconds, latency."""


@dataclass(frozen=True, slots=True)
class Special:
    """What an operation has to do with collectives, or its second half if it is an FB."""

    second_needs: int = 0
    second_sends: int = 0
    second_message: Message | None = None
    needs_fetch: Message | None = None
    """Parameters it waits for; asked for one operation ahead, or now if nothing overlaps."""
    early_fetch: int = -1
    """Parameters that were asked for when the step began: their index in `Program.first_fetches`."""
    prefetch: Message | None = None
    """Parameters of the next operation, asked for when this one starts."""
    reduce: Message | None = None
    """Gradients that leave when it ends."""
    waits_for_reduce: bool = False
    """Whether the device does nothing until they have arrived."""


@dataclass(slots=True)
class Program:
    needs: list[list[int]]
    sends: list[list[int]]
    slots: list[list[int]]
    specials: list[dict[int, Special]]
    odd_slot: int
    """Slots from this one on belong to operations with an entry in `specials`."""
    seconds: list[float]
    """By slot."""
    messages: list[Message | None]
    """By slot: what the link does with the operation's output; None: it is there at once."""
    labels: list[tuple[str, int]]
    """By slot: kind and virtual stage."""
    links: list[Hashable]
    shared: bool
    """Whether two devices send over one link, so that only time decides who is first."""
    message_count: int
    micro_batches: int
    stages: int
    first_fetches: list[list[Message]] = field(default_factory=list)
    last_reduces: list[list[Message]] = field(default_factory=list)
    """By device: gradients that leave after the last operation, when nothing overlaps."""
    optimizer: list[float] = field(default_factory=list)
    owners: list[list[int]] = field(default_factory=list)
    """By device: the operation each part was cut from; empty where nothing was cut."""


def grid_of(schedule: Schedule, costs: StepCosts) -> float:
    """Grid points a second: a power of two such that the whole step has fewer than 2^52 of them."""
    transfers = [t for t in (*costs.forward_transfers, *costs.backward_transfers) if t is not None]
    per_micro_batch = (
        sum(costs.forward)
        + sum(costs.backward_input)
        + sum(costs.backward_weight)
        + sum(transfer.seconds + transfer.latency_seconds for transfer in transfers)
        + sum(costs.forward_backward.values())
    )
    collectives = (*costs.gradient.values(), *costs.parameters.values())
    fixed = sum(costs.optimizer_seconds)
    for collective in collectives:
        whole = collective.seconds + collective.buckets * collective.latency_seconds
        if collective.each == "step":
            fixed += whole
        else:
            per_micro_batch += 3 * whole
    bound = schedule.micro_batches * per_micro_batch + fixed
    if not math.isfinite(bound):
        raise PlanError("A cost of the pipeline is not a finite number; give seconds that are.")
    return 2.0 ** (52 - math.ceil(math.log2(bound))) if bound > 0 else 1.0


def compile_program(schedule: Schedule, costs: StepCosts, grid: float) -> Program:
    """The flat form of a schedule; `grid` from `grid_of`."""
    return _Compiler(schedule, costs, grid).compile()


class _Compiler:
    def __init__(self, schedule: Schedule, costs: StepCosts, grid: float) -> None:
        self.schedule = schedule
        self.costs = costs
        self.grid = grid
        self.stages = schedule.stages
        if len(costs.forward) != self.stages:
            raise PlanError(
                f"The costs are for {len(costs.forward)} virtual stages and schedule {schedule.name} has "
                f"{self.stages} ({schedule.devices} devices x {schedule.chunks} chunks); give one per stage."
            )
        wrong = costs.negative()
        if wrong is not None:
            raise PlanError(f"StepCosts.{wrong} holds a negative time; give 0 or more seconds.")
        self.links: dict[Hashable, int] = {}
        self.senders: list[int] = []
        self.shared = False
        self.seconds: list[float] = []
        self.messages: list[Message | None] = []
        self.labels: list[tuple[str, int]] = []
        self.chunk_stages = schedule.chunk_stages
        self.per_stream = self.stages // schedule.streams

    def compile(self) -> Program:
        self._base_slots()
        devices = self.schedule.devices
        needs: list[list[int]] = []
        sends: list[list[int]] = []
        slots: list[list[int]] = []
        specials: list[dict[int, Special]] = []
        for device in range(devices):
            mine: tuple[list[int], list[int], list[int], dict[int, Special]] = ([], [], [], {})
            for segment in self.schedule.segments[device]:
                if segment.repeats:
                    self._add_segment(device, segment, *mine)
            for whole, part in zip((needs, sends, slots), mine[:3], strict=True):
                whole.append(part)
            specials.append(mine[3])
        optimizer = self.costs.optimizer_seconds or (0.0,) * devices
        program = Program(
            needs=needs,
            sends=sends,
            slots=slots,
            specials=specials,
            odd_slot=4 * self.stages,
            seconds=self.seconds,
            messages=self.messages,
            labels=self.labels,
            links=[],
            shared=False,
            message_count=1 + 2 * self.stages * self.schedule.micro_batches,
            micro_batches=self.schedule.micro_batches,
            stages=self.stages,
            first_fetches=[[] for _ in range(devices)],
            last_reduces=[[] for _ in range(devices)],
            optimizer=[self._round(seconds) for seconds in optimizer],
            owners=[[] for _ in range(devices)],
        )
        if self.costs.gradient or self.costs.parameters:
            for device in range(devices):
                self._add_collectives(program, device)
        program.links = list(self.links)
        program.shared = self.shared
        return program

    def _round(self, seconds: float) -> float:
        return round(seconds * self.grid) / self.grid

    def _message(self, sender: int, message: Transfer | Collective) -> Message:
        number = self.links.setdefault(message.link, len(self.links))
        if number == len(self.senders):
            self.senders.append(sender)
        elif self.senders[number] != sender:
            self.shared = True
        return number, self._round(message.seconds), self._round(message.latency_seconds)

    def _base_slots(self) -> None:
        costs, stages, placement = self.costs, self.stages, self.schedule.placement
        forward = [self._round(seconds) for seconds in costs.forward]
        back = [self._round(seconds) for seconds in costs.backward_input]
        weight = [self._round(seconds) for seconds in costs.backward_weight]
        both = [b + w for b, w in zip(back, weight, strict=True)]
        onward: list[Message | None] = [None] * stages
        backward: list[Message | None] = [None] * stages
        for boundary in range(stages - 1):
            if (boundary + 1) % self.per_stream == 0:
                continue  # one model ends here and the other begins
            if costs.forward_transfers and (there := costs.forward_transfers[boundary]) is not None:
                onward[boundary] = self._message(placement[boundary], there)
            if costs.backward_transfers and (here := costs.backward_transfers[boundary]) is not None:
                backward[boundary + 1] = self._message(placement[boundary + 1], here)
        self.seconds += forward + back + weight + both
        self.messages += onward + backward + [None] * stages + backward
        self.labels += [(kind, stage) for kind in KINDS for stage in range(stages)]

    def _ends(self, kind: str, stage: int) -> tuple[int, int]:
        """First numbers (micro-batch 0) of what an operation needs and sends; 0: nothing."""
        count, place = self.schedule.micro_batches, stage % self.per_stream
        first, last = place == 0, place == self.per_stream - 1
        if kind == "F":
            return (0 if first else 1 + stage * count), (0 if last else 1 + (stage + 1) * count)
        if kind == "W":
            return 0, 0
        base = 1 + (self.stages + stage) * count
        return (0 if last else base), (0 if first else base - count)

    def _add_segment(
        self,
        device: int,
        segment: Segment,
        needs: list[int],
        sends: list[int],
        slots: list[int],
        specials: dict[int, Special],
    ) -> None:
        length, repeats, shift = len(segment.ops), segment.repeats, segment.shift
        base = len(slots)
        need = [0] * (length * repeats)
        send = [0] * (length * repeats)
        row: list[int] = []
        for place, op in enumerate(segment.ops):
            stage = self.chunk_stages[device][op.chunk]
            kind = "F" if op.kind == "FB" else op.kind
            for target, first in zip((need, send), self._ends(kind, stage), strict=True):
                if first:
                    first += op.micro_batch
                    target[place::length] = (
                        range(first, first + shift * repeats, shift) if shift else [first] * repeats
                    )
            if op.kind != "FB":
                row.append(KINDS.index(op.kind) * self.stages + stage)
                continue
            back = self.chunk_stages[device][op.backward_chunk]
            row.append(self._pair_slot(stage, back))
            message = self.messages[self.stages + back]
            needed, sent = self._ends("BW", back)
            for turn in range(repeats):
                number = op.backward_micro_batch + shift * turn
                specials[base + turn * length + place] = Special(
                    second_needs=needed + number if needed else 0,
                    second_sends=sent + number if sent else 0,
                    second_message=message,
                )
        needs += need
        sends += send
        slots += row * repeats

    def _pair_slot(self, stage: int, back: int) -> int:
        together = self.costs.forward_backward.get((stage, back))
        seconds = (
            self.seconds[stage] + self.seconds[3 * self.stages + back]
            if together is None
            else self._round(together)
        )
        return self._odd_slot(seconds, self.messages[stage], ("FB", stage))

    def _odd_slot(self, seconds: float, message: Message | None, label: tuple[str, int]) -> int:
        self.seconds.append(seconds)
        self.messages.append(message)
        self.labels.append(label)
        return len(self.seconds) - 1

    def _add_collectives(self, program: Program, device: int) -> None:
        """Cuts the operations concerned into parts and notes what each part waits for or lets go."""
        fetches, reduces = self._where(program, device)
        if not fetches and not reduces:
            return
        overlap = self.costs.overlap
        needs, sends, slots = program.needs[device], program.sends[device], program.slots[device]
        old = program.specials[device]
        new_needs: list[int] = []
        new_sends: list[int] = []
        new_slots: list[int] = []
        specials: dict[int, Special] = {}
        owners = program.owners[device]
        cuts: dict[tuple[int, int, int], list[tuple[int, Special]]] = {}
        ahead: dict[tuple[Special, Message], Special] = {}
        """(what a part does, parameters to ask for meanwhile) -> both: many operations share them."""
        plain = Special()
        for index, slot in enumerate(slots):
            fetch, reduce = fetches.get(index), reduces.get(index)
            if fetch is None and reduce is None:
                if index in old:
                    specials[len(new_slots)] = old[index]
                new_needs.append(needs[index])
                new_sends.append(sends[index])
                new_slots.append(slot)
                owners.append(index)
                continue
            key = slot, id(fetch), id(reduce)
            if key not in cuts:
                cuts[key] = self._cut_operation(device, slot, fetch, reduce)
            pieces = cuts[key]
            last = len(pieces) - 1
            new_needs += [needs[index]] + [0] * last
            new_sends += [0] * last + [sends[index]]
            owners += [index] * (last + 1)
            before = old.get(index)
            for piece, (part, special) in enumerate(pieces):
                at = len(new_slots)
                new_slots.append(part)
                if before is not None and piece in (0, last):
                    special = replace(
                        special,
                        second_needs=before.second_needs if piece == 0 else 0,
                        second_sends=before.second_sends if piece == last else 0,
                        second_message=before.second_message if piece == last else None,
                    )
                message = special.needs_fetch
                if message is not None and overlap and fetch is not None:
                    if fetch.each == "step" or at == 0:
                        early = len(program.first_fetches[device])
                        special = replace(special, needs_fetch=None, early_fetch=early)
                        program.first_fetches[device].append(message)
                    else:
                        previous = specials.get(at - 1, plain)
                        if previous.second_needs or previous.second_sends:
                            specials[at - 1] = replace(previous, prefetch=message)
                        else:
                            both = previous, message
                            if both not in ahead:
                                ahead[both] = replace(previous, prefetch=message)
                            specials[at - 1] = ahead[both]
                specials[at] = special
            if reduce is not None and not overlap and reduce.each == "step":
                program.last_reduces[device].append(self._piece(device, reduce, 1))
        self._mark_odd(new_slots, specials, program.odd_slot)
        program.needs[device], program.sends[device] = new_needs, new_sends
        program.slots[device], program.specials[device] = new_slots, specials

    def _cut_operation(
        self, device: int, slot: int, fetch: Collective | None, reduce: Collective | None
    ) -> list[tuple[int, Special]]:
        """Parts of an operation: the slot of each and what it has to do with the collectives."""
        overlap = self.costs.overlap
        pieces = max(fetch.buckets if fetch else 1, reduce.buckets if reduce and overlap else 1)
        at_once = reduce is not None and (overlap or reduce.each != "step")
        special = Special(
            needs_fetch=self._piece(device, fetch, pieces) if fetch is not None else None,
            reduce=self._piece(device, reduce, pieces) if reduce is not None and at_once else None,
            waits_for_reduce=at_once and not overlap,
        )
        parts = []
        for piece, seconds in enumerate(self._cut(self.seconds[slot], pieces)):
            message = self.messages[slot] if piece == pieces - 1 else None
            parts.append((self._odd_slot(seconds, message, self.labels[slot]), special))
        return parts

    def _mark_odd(self, slots: list[int], specials: dict[int, Special], odd: int) -> None:
        """Gives operations that only now became special a slot of their own."""
        copies: dict[int, int] = {}
        for at in specials:
            slot = slots[at]
            if slot < odd:
                if slot not in copies:
                    copies[slot] = self._odd_slot(self.seconds[slot], self.messages[slot], self.labels[slot])
                slots[at] = copies[slot]

    def _piece(self, device: int, collective: Collective, pieces: int) -> Message:
        link, seconds, latency = self._message(device, collective)
        return link, self._round(seconds / pieces), latency

    def _cut(self, seconds: float, pieces: int) -> Iterator[float]:
        part = self._round(seconds / pieces)
        for _ in range(pieces - 1):
            yield part
        yield seconds - (pieces - 1) * part

    def _where(self, program: Program, device: int) -> tuple[dict[int, Collective], dict[int, Collective]]:
        """Operation index -> the parameters it needs, the gradients it completes."""
        fetches: dict[int, Collective] = {}
        reduces: dict[int, Collective] = {}
        chunk_of = {stage: chunk for chunk, stage in enumerate(self.chunk_stages[device])}
        steps = [(self.labels[slot], index) for index, slot in enumerate(program.slots[device])]
        fetched: set[int] = set()
        previous = -1
        last: dict[int, int] = {}
        for (kind, stage), index in steps:
            chunk = chunk_of[stage]
            parameters = self.costs.parameters.get((device, chunk))
            if parameters is not None and (
                parameters.each == "op"
                or (parameters.each == "turn" and chunk != previous)
                or (parameters.each == "step" and chunk not in fetched)
            ):
                fetches[index] = parameters
                fetched.add(chunk)
            previous = chunk
            if kind in ("W", "BW", "FB"):
                back = chunk
                if kind == "FB":
                    back = self._backward_chunk(program, device, index, chunk_of)
                gradient = self.costs.gradient.get((device, back))
                if gradient is not None:
                    if gradient.each == "step":
                        last[back] = index
                    elif gradient.each == "op" or self._turns_after(steps, index):
                        reduces[index] = gradient
        for chunk, index in sorted(last.items(), key=lambda item: item[1]):
            reduces[index] = self.costs.gradient[device, chunk]
        return fetches, reduces

    @staticmethod
    def _turns_after(steps: list[tuple[tuple[str, int], int]], index: int) -> bool:
        return index + 1 == len(steps) or steps[index + 1][0][1] != steps[index][0][1]

    def _backward_chunk(self, program: Program, device: int, index: int, chunk_of: dict[int, int]) -> int:
        """The chunk whose gradients an FB computes: with two chunks a device it is the other one."""
        forward = chunk_of[self.labels[program.slots[device][index]][1]]
        return 1 - forward
