"""Turns a schedule and its costs into a program.

All seconds are rounded to a binary grid fine enough (2^-52 of a bound on the step) that no sum of them is
ever rounded again. So the result does not depend on the order of additions, and a period of the steady state
can be skipped with exactly the result of running it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule, Segment
from megalith.explore.pipeline.simulation.collective_buckets import add_collectives
from megalith.explore.pipeline.simulation.program import KINDS, Message, Program, Special, message_ends


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
    return Compiler(schedule, costs, grid).compile()


class Compiler:
    """State of one compilation: links and slots handed out so far."""

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
        if len(costs.optimizer_seconds) not in (0, schedule.devices):
            raise PlanError(
                f"StepCosts.optimizer_seconds has {len(costs.optimizer_seconds)} entries for "
                f"{schedule.devices} devices; give one per device."
            )
        wrong = costs.negative()
        if wrong is not None:
            raise PlanError(f"StepCosts.{wrong} holds a negative time; give 0 or more seconds.")
        self.links: dict[Hashable, int] = {}
        self.senders: list[int] = []
        self.shared_links: set[int] = set()
        """Links over which several devices send."""
        self.seconds: list[float] = []
        self.messages: list[Message | None] = []
        self.labels: list[tuple[str, int]] = []
        self.chunk_stages = schedule.chunk_stages
        self.per_stream = self.stages // schedule.streams

    def compile(self) -> Program:
        self.add_base_slots()
        devices = self.schedule.devices
        needs, sends, slots, specials = self._operations()
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
            optimizer=[self.round_seconds(seconds) for seconds in optimizer],
            owners=[[] for _ in range(devices)],
        )
        if self.costs.gradient or self.costs.parameters:
            for device in range(devices):
                add_collectives(self, program, device)
        program.links = list(self.links)
        program.shared = bool(self.shared_links)
        return program

    def _operations(
        self,
    ) -> tuple[list[list[int]], list[list[int]], list[list[int]], list[dict[int, Special]]]:
        """By device; the schedule alone decides them, unless two directions run side by side."""
        derived = self.schedule.derived
        if "operations" in derived:
            needs, sends, slots = derived["operations"]
            return list(needs), list(sends), list(slots), [{} for _ in slots]
        specials: list[dict[int, Special]] = []
        needs, sends, slots = [], [], []
        for device in range(self.schedule.devices):
            mine: tuple[list[int], list[int], list[int], dict[int, Special]] = ([], [], [], {})
            for segment in self.schedule.segments[device]:
                if segment.repeats:
                    self._add_segment(device, segment, *mine)
            for whole, part in zip((needs, sends, slots), mine[:3], strict=True):
                whole.append(part)
            specials.append(mine[3])
        if not any(specials):
            derived["operations"] = needs, sends, slots
        return list(needs), list(sends), list(slots), specials

    def round_seconds(self, seconds: float) -> float:
        return round(seconds * self.grid) / self.grid

    def message_of(self, sender: int, message: Transfer | Collective) -> Message:
        number = self.links.setdefault(message.link, len(self.links))
        if number == len(self.senders):
            self.senders.append(sender)
        elif self.senders[number] != sender:
            self.shared_links.add(number)
        return number, self.round_seconds(message.seconds), self.round_seconds(message.latency_seconds)

    def add_base_slots(self) -> None:
        costs, stages, placement = self.costs, self.stages, self.schedule.placement
        forward = [self.round_seconds(seconds) for seconds in costs.forward]
        back = [self.round_seconds(seconds) for seconds in costs.backward_input]
        weight = [self.round_seconds(seconds) for seconds in costs.backward_weight]
        both = [b + w for b, w in zip(back, weight, strict=True)]
        onward: list[Message | None] = [None] * stages
        backward: list[Message | None] = [None] * stages
        for boundary in range(stages - 1):
            if (boundary + 1) % self.per_stream == 0:
                continue  # one model ends here and the other begins
            if costs.forward_transfers and (there := costs.forward_transfers[boundary]) is not None:
                onward[boundary] = self.message_of(placement[boundary], there)
            if costs.backward_transfers and (here := costs.backward_transfers[boundary]) is not None:
                backward[boundary + 1] = self.message_of(placement[boundary + 1], here)
        self.seconds += forward + back + weight + both
        self.messages += onward + backward + [None] * stages + backward
        self.labels += [(kind, stage) for kind in KINDS for stage in range(stages)]

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
            for target, first in zip((need, send), message_ends(self.schedule, kind, stage), strict=True):
                if first:
                    first += op.micro_batch
                    target[place::length] = (
                        range(first, first + shift * repeats, shift) if shift else [first] * repeats
                    )
            if op.kind != "FB":
                row.append(KINDS.index(op.kind) * self.stages + stage)
                continue
            back = self.chunk_stages[device][op.backward_chunk]
            row.append(self.pair_slot(stage, back))
            message = self.messages[self.stages + back]
            needed, sent = message_ends(self.schedule, "BW", back)
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

    def pair_slot(self, stage: int, back: int) -> int:
        together = self.costs.forward_backward.get((stage, back))
        seconds = (
            self.seconds[stage] + self.seconds[3 * self.stages + back]
            if together is None
            else self.round_seconds(together)
        )
        return self.new_slot(seconds, self.messages[stage], ("FB", stage))

    def new_slot(self, seconds: float, message: Message | None, label: tuple[str, int]) -> int:
        self.seconds.append(seconds)
        self.messages.append(message)
        self.labels.append(label)
        return len(self.seconds) - 1
