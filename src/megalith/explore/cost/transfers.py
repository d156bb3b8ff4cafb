"""Activations and their gradients between pipeline stages: point-to-point messages on the cluster's links."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from megalith.explore.cost.layers import MicroBatchSeconds
from megalith.explore.pipeline.costs import Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.placement import StageBoundary, boundary
from megalith.explore.plan import Plan

Transfers = tuple[Transfer | None, ...]


@dataclass(frozen=True, slots=True)
class StageTransfers:
    """The messages of one micro-batch at every boundary between virtual stages."""

    forward: Transfers
    backward: Transfers
    level_bytes: dict[str, float]
    """Bytes a step that leave the busiest member of each level, by level name."""


@dataclass(slots=True)
class _Counter:
    """Makes messages and counts the bytes that leave each member of a level with them."""

    plan: Plan
    message_bytes: float
    leaving: dict[tuple[int, int], float] = field(default_factory=dict)

    def transfer(self, sender: int, receiver: int) -> Transfer | None:
        """The message from one pipeline rank to another; None if they are the same device."""
        plan = self.plan
        crossed = boundary(plan.parallel, plan.cluster, sender, receiver)
        if crossed.level < 0:
            return None
        self._count(crossed)
        rate = plan.fabric.rate(crossed.level, crossed.sharing)
        link = (plan.cluster.levels[crossed.level].name, crossed.member)
        latency = plan.fabric.latency(crossed.level) + plan.constants.transfer_seconds
        return Transfer(link, self.message_bytes / rate, latency)

    def _count(self, crossed: StageBoundary) -> None:
        member = (crossed.level, crossed.member)
        sent = self.message_bytes * crossed.sharing * self.plan.micro_batches
        self.leaving[member] = self.leaving.get(member, 0.0) + sent


def stage_transfers(plan: Plan, schedule: Schedule) -> StageTransfers:
    """Messages between stages; each rank sends its share of the hidden state (scatter-gather)."""
    model, shape = plan.transformer, plan.shape
    size = 4.0 if plan.precision == "fp32" else 2.0
    counter = _Counter(plan, size * model.seq * shape.micro_batch / shape.cp * model.hidden / shape.tp)
    per_stream = len(schedule.placement) // schedule.streams
    pairs = list(pairwise(schedule.placement))
    # No message goes from the end of one direction of DualPipe to the start of the other.
    forward = tuple(
        None if (index + 1) % per_stream == 0 else counter.transfer(sender, receiver)
        for index, (sender, receiver) in enumerate(pairs)
    )
    backward = tuple(
        None if (index + 1) % per_stream == 0 else counter.transfer(receiver, sender)
        for index, (sender, receiver) in enumerate(pairs)
    )
    level_bytes = {level.name: 0.0 for level in plan.cluster.levels}
    for (level, _), count in counter.leaving.items():
        name = plan.cluster.levels[level].name
        level_bytes[name] = max(level_bytes[name], count)
    return StageTransfers(forward, backward, level_bytes)


def with_blocking_sends(
    stages: tuple[MicroBatchSeconds, ...], transfers: StageTransfers
) -> tuple[MicroBatchSeconds, ...]:
    """Stages whose devices wait for what they send: the message is part of the operation before it."""
    forward = [*(_send_seconds(transfer) for transfer in transfers.forward), 0.0]
    backward = [0.0, *(_send_seconds(transfer) for transfer in transfers.backward)]
    return tuple(
        stage.plus(MicroBatchSeconds(forward=ahead, backward_input=back, pipeline_transfer=ahead + back))
        for stage, ahead, back in zip(stages, forward, backward, strict=True)
    )


def _send_seconds(transfer: Transfer | None) -> float:
    return transfer.seconds + transfer.latency_seconds if transfer else 0.0
