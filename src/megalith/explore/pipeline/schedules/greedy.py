"""An order made for given costs: list scheduling, event by event, under a cap on what each device may hold.

Whenever a device is free it takes, of what has arrived, an input gradient first (others wait for it and it
frees memory), then a forward if its activations still fit, then a weight gradient that nobody waits for.
Messages queue on links as in the simulation, so a slow boundary is answered by as many micro-batches in
flight as memory allows. This is the greedy that CrossPipe reports to come near the optimum of its solver.

No cap can lock the pipeline up: a device only takes a forward if what remains still holds all the chunks that
its oldest micro-batch has before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import StepCosts, Transfer
from megalith.explore.pipeline.operations import Kind, Op, Schedule, Segment
from megalith.explore.pipeline.schedules.one_forward_one_backward import looped_placement
from megalith.explore.pipeline.simulate import simulate


@dataclass(frozen=True, slots=True)
class GreedyPolicy:
    """Choices that costs alone do not settle."""

    deepest_first: bool = True
    """Of several forwards that could run, the one of the last chunk; otherwise of the oldest micro-batch."""
    patience: float = 0.0
    """Wait, rather than begin a weight gradient, if other work is known to come within this share of its
    time."""
    split: bool = True
    """Weight gradients apart from input gradients."""


POLICIES = (
    GreedyPolicy(),
    GreedyPolicy(deepest_first=False),
    GreedyPolicy(patience=0.5),
    GreedyPolicy(split=False),
)


def greedy_schedule(
    costs: StepCosts,
    devices: int,
    micro_batches: int,
    chunks: int,
    memory_limit_per_device: float | Sequence[float],
    *,
    policy: GreedyPolicy | None = None,
    placement: Sequence[int] | None = None,
) -> Schedule:
    """The order in which a greedy runs these costs; the best of a few such orders unless a policy is given.

    The memory limit is in the unit of `StepCosts.activation`: micro-batches of one chunk when that is left
    out.
    """
    limits = (
        [float(memory_limit_per_device)] * devices
        if isinstance(memory_limit_per_device, int | float)
        else [float(limit) for limit in memory_limit_per_device]
    )
    placed = tuple(placement or looped_placement(devices, chunks))
    if len(costs.forward) != devices * chunks or len(placed) != devices * chunks or len(limits) != devices:
        raise PlanError(
            f"The costs are for {len(costs.forward)} virtual stages; {devices} devices x {chunks} chunks "
            f"need {devices * chunks}, a placement of as many stages and a memory limit for each device."
        )
    policies = (policy,) if policy else POLICIES if chunks > 1 else (POLICIES[0], *POLICIES[2:])
    schedules = [
        _Greedy(costs, devices, micro_batches, chunks, limits, placed, each).run() for each in policies
    ]
    if len(schedules) == 1:
        return schedules[0]
    return min(schedules, key=lambda schedule: simulate(schedule, costs).step_seconds)


class _Greedy:
    """State of one list scheduling: what each device holds, has ready and owes."""

    def __init__(
        self,
        costs: StepCosts,
        devices: int,
        micro_batches: int,
        chunks: int,
        limits: list[float],
        placement: tuple[int, ...],
        policy: GreedyPolicy,
    ) -> None:
        self.costs = costs
        self.devices, self.micro_batches, self.chunks = devices, micro_batches, chunks
        self.limits, self.placement, self.policy = limits, placement, policy
        self.stages = len(placement)
        self.chunk_stages: list[list[int]] = [[] for _ in range(devices)]
        self.chunk_of: list[int] = []
        for stage, device in enumerate(placement):
            self.chunk_of.append(len(self.chunk_stages[device]))
            self.chunk_stages[device].append(stage)
        self.holds = list(costs.activation or (1.0,) * self.stages)
        self._check_limits()
        self.held = [0.0] * devices
        self.ready_forward: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
        self.ready_backward: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
        """Heaps of (rank, stage): what comes first has the least rank."""
        self.owed: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
        self.forwarded = [[0] * micro_batches for _ in range(devices)]
        self.oldest = [0] * devices
        """By device: the first micro-batch that has forwards left there."""
        self.busy = [False] * devices
        self.known: list[list[float]] = [[] for _ in range(devices)]
        """When messages already sent will arrive, by device."""
        self.link_free: dict[object, float] = {}
        self.order: list[list[Op]] = [[] for _ in range(devices)]
        self.events: list[tuple[float, int, int, str, int, int]] = []
        """Time, 0 arrival or 1 end, device, kind, stage, micro-batch."""

    def _check_limits(self) -> None:
        for device, stages in enumerate(self.chunk_stages):
            least = sum(self.holds[stage] for stage in stages)
            if self.limits[device] < least:
                raise PlanError(
                    f"Device {device} may hold {self.limits[device]:g} and one micro-batch needs {least:g} "
                    f"there; raise its memory limit to at least {least:g}."
                )

    def run(self) -> Schedule:
        first = self.placement[0]
        for micro_batch in range(self.micro_batches):
            heappush(self.ready_forward[first], (self._rank(0, micro_batch), micro_batch))
        self._begin(first, 0.0)
        while self.events:
            time, is_end, device, kind, stage, micro_batch = heappop(self.events)
            if is_end:
                self._end(device, kind, stage, micro_batch, time)
            else:
                heappop(self.known[device])
                if kind == "F":
                    rank = self._rank(stage, micro_batch)
                    heappush(self.ready_forward[device], (rank, stage * self.micro_batches + micro_batch))
                else:
                    rank = micro_batch * self.stages + self.stages - stage
                    heappush(self.ready_backward[device], (rank, stage * self.micro_batches + micro_batch))
            if not self.busy[device]:
                self._begin(device, time)
        return Schedule(
            name="long-link",
            devices=self.devices,
            chunks=self.chunks,
            micro_batches=self.micro_batches,
            segments=tuple((Segment(tuple(ops)),) for ops in self.order),
            placement=self.placement,
        )

    def _rank(self, stage: int, micro_batch: int) -> int:
        if self.policy.deepest_first:
            return (self.stages - stage) * self.micro_batches + micro_batch
        return micro_batch * self.stages + stage

    def _fits(self, device: int, stage: int, micro_batch: int) -> bool:
        """Whether this forward leaves room for what the oldest micro-batch still has to do here."""
        oldest = self.oldest[device]
        free = self.limits[device] - self.held[device] - self.holds[stage]
        if micro_batch == oldest:
            return free >= -1e-9
        stages = self.chunk_stages[device]
        ahead = sum(self.holds[later] for later in stages[self.forwarded[device][oldest] :])
        return free - ahead >= -1e-9

    def _begin(self, device: int, now: float) -> None:
        """Picks the next operation of a free device, if there is one."""
        costs = self.costs
        if self.ready_backward[device]:
            stage, micro_batch = divmod(heappop(self.ready_backward[device])[1], self.micro_batches)
            seconds = costs.backward_input[stage]
            if not self.policy.split:
                seconds += costs.backward_weight[stage]
            self._take(device, "B" if self.policy.split else "BW", stage, micro_batch, now + seconds)
            return
        passed: list[tuple[int, int]] = []
        while self.ready_forward[device]:
            entry = heappop(self.ready_forward[device])
            stage, micro_batch = divmod(entry[1], self.micro_batches)
            if self._fits(device, stage, micro_batch):
                break
            passed.append(entry)
            if len(passed) > self.chunks and micro_batch > self.oldest[device]:
                entry = (-1, -1)
                break
        else:
            entry = (-1, -1)
        for passed_entry in passed:
            heappush(self.ready_forward[device], passed_entry)
        if entry[1] >= 0:
            self.held[device] += self.holds[stage]
            self.forwarded[device][micro_batch] += 1
            while (
                self.oldest[device] < self.micro_batches - 1
                and self.forwarded[device][self.oldest[device]] == self.chunks
            ):
                self.oldest[device] += 1
            self._take(device, "F", stage, micro_batch, now + costs.forward[stage])
            return
        if self.owed[device]:
            stage, micro_batch = self.owed[device][0]
            seconds = costs.backward_weight[stage]
            known = self.known[device]
            if self.policy.patience and known and known[0] < now + self.policy.patience * seconds:
                return
            self.owed[device].pop(0)
            self._take(device, "W", stage, micro_batch, now + seconds)

    def _take(self, device: int, kind: Kind, stage: int, micro_batch: int, end: float) -> None:
        self.busy[device] = True
        self.order[device].append(Op(kind, device, self.chunk_of[stage], micro_batch))
        heappush(self.events, (end, 1, device, kind, stage, micro_batch))

    def _end(self, device: int, kind: str, stage: int, micro_batch: int, time: float) -> None:
        self.busy[device] = False
        costs, kept = self.costs, self.costs.kept_for_weights
        if kind == "F":
            if stage + 1 < self.stages:
                message = costs.forward_transfers[stage] if costs.forward_transfers else None
                self._send(message, "F", stage + 1, micro_batch, time)
            else:
                rank = micro_batch * self.stages
                heappush(self.ready_backward[device], (rank, stage * self.micro_batches + micro_batch))
            return
        if kind == "W":
            self.held[device] -= self.holds[stage] * kept
            return
        if kind == "B":
            self.held[device] -= self.holds[stage] * (1.0 - kept)
            self.owed[device].append((stage, micro_batch))
        else:
            self.held[device] -= self.holds[stage]
        if stage:
            message = costs.backward_transfers[stage - 1] if costs.backward_transfers else None
            self._send(message, "B", stage - 1, micro_batch, time)

    def _send(self, message: Transfer | None, kind: str, stage: int, micro_batch: int, time: float) -> None:
        arrival = time
        if message is not None:
            free = max(self.link_free.get(message.link, 0.0), time) + message.seconds
            self.link_free[message.link] = free
            arrival = free + message.latency_seconds
        device = self.placement[stage]
        heappush(self.known[device], arrival)
        heappush(self.events, (arrival, 0, device, kind, stage, micro_batch))
