"""The table of operation types that a program refers to: how long each takes and what it sends.

All seconds are rounded to a binary grid fine enough (2^-52 of a bound on the step) that no sum of them is
ever rounded again. So the result does not depend on the order of additions, and a period of the steady state
can be skipped with exactly the result of running it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import Collective, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulation.program import KINDS, Message


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


class OperationTable:
    """Operation types and links handed out so far, for one schedule with its costs.

    The first four times as many types as there are stages are F, B, W and BW of each stage; pairs of a
    forward and a backward and parts of operations follow.
    """

    def __init__(self, schedule: Schedule, costs: StepCosts, grid: float) -> None:
        self.schedule = schedule
        self.costs = costs
        self.grid = grid
        self.stages = schedule.stages
        _check_costs(schedule, costs)
        self.links: dict[Hashable, int] = {}
        self.senders: list[int] = []
        self.shared_links: set[int] = set()
        """Links over which several devices send."""
        self.seconds: list[float] = []
        self.messages: list[Message | None] = []
        self.labels: list[tuple[str, int]] = []
        self.chunk_stages = schedule.chunk_stages
        self._add_base_types()

    def round_seconds(self, seconds: float) -> float:
        """The nearest point of the grid."""
        return round(seconds * self.grid) / self.grid

    def message_of(self, sender: int, message: Transfer | Collective) -> Message:
        """A transfer or collective on the link's number; notes who sends over it."""
        number = self.links.setdefault(message.link, len(self.links))
        if number == len(self.senders):
            self.senders.append(sender)
        elif self.senders[number] != sender:
            self.shared_links.add(number)
        return number, self.round_seconds(message.seconds), self.round_seconds(message.latency_seconds)

    def bucket_of(self, sender: int, collective: Collective, buckets: int) -> Message:
        """One of equal pieces of a collective."""
        link, seconds, latency = self.message_of(sender, collective)
        return link, self.round_seconds(seconds / buckets), latency

    def new_type(self, seconds: float, message: Message | None, label: tuple[str, int]) -> int:
        """Adds an operation type: what it takes, sends, and is called (kind and stage)."""
        self.seconds.append(seconds)
        self.messages.append(message)
        self.labels.append(label)
        return len(self.seconds) - 1

    def pair_type(self, stage: int, back: int) -> int:
        """Adds an FB: the forward of one stage beside both gradients of another."""
        together = self.costs.forward_backward.get((stage, back))
        seconds = (
            self.seconds[stage] + self.seconds[3 * self.stages + back]
            if together is None
            else self.round_seconds(together)
        )
        return self.new_type(seconds, self.messages[stage], ("FB", stage))

    def _add_base_types(self) -> None:
        costs, stages, placement = self.costs, self.stages, self.schedule.placement
        per_stream = stages // self.schedule.streams
        forward = [self.round_seconds(seconds) for seconds in costs.forward]
        back = [self.round_seconds(seconds) for seconds in costs.backward_input]
        weight = [self.round_seconds(seconds) for seconds in costs.backward_weight]
        both = [b + w for b, w in zip(back, weight, strict=True)]
        onward: list[Message | None] = [None] * stages
        backward: list[Message | None] = [None] * stages
        for boundary in range(stages - 1):
            if (boundary + 1) % per_stream == 0:
                continue  # one model ends here and the other begins
            if costs.forward_transfers and (there := costs.forward_transfers[boundary]) is not None:
                onward[boundary] = self.message_of(placement[boundary], there)
            if costs.backward_transfers and (here := costs.backward_transfers[boundary]) is not None:
                backward[boundary + 1] = self.message_of(placement[boundary + 1], here)
        self.seconds += forward + back + weight + both
        self.messages += onward + backward + [None] * stages + backward
        self.labels += [(kind, stage) for kind in KINDS for stage in range(stages)]


def _check_costs(schedule: Schedule, costs: StepCosts) -> None:
    if len(costs.forward) != schedule.stages:
        raise PlanError(
            f"The costs are for {len(costs.forward)} virtual stages and schedule {schedule.name} has "
            f"{schedule.stages} ({schedule.devices} devices x {schedule.chunks} chunks); give one per stage."
        )
    if len(costs.optimizer_seconds) not in (0, schedule.devices):
        raise PlanError(
            f"StepCosts.optimizer_seconds has {len(costs.optimizer_seconds)} entries for "
            f"{schedule.devices} devices; give one per device."
        )
    wrong = costs.negative()
    if wrong is not None:
        raise PlanError(f"StepCosts.{wrong} holds a negative time; give 0 or more seconds.")
