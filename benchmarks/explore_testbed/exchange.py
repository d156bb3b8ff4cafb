"""Gradient exchanges between ranks: a ring with receives posted ahead, gloo's own, and a hierarchical one.

`Ring` is what NCCL does: buffers to receive into are known to the sender before a step starts, so that a
message costs one latency. gloo's own all-reduce announces each buffer when it gets there and its sender
waits for that: two latencies a message (gloo/transport/tcp/pair.cc), which predictions.py accounts for.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

# Tags of pipeline transfers lie below, see steps.py.
_FIRST_TAG = 1 << 20
_TAGS_AN_EXCHANGE = 1 << 8


class Exchange(Protocol):
    """Sums one buffer over ranks, in place."""

    def post(self) -> None:
        """Called on every rank before the step: receives that can be posted ahead are posted."""

    def run(self) -> None:
        """Sums the buffer; called once its gradients are complete."""


class Ring:
    """Reduce-scatter and all-gather, or one of them, around `ranks` in their order."""

    def __init__(self, buffer: Tensor, ranks: list[int], number: int, phases: tuple[str, ...]) -> None:
        self.ranks, self.position = ranks, ranks.index(dist.get_rank())
        self.chunks = _cut(buffer, len(ranks))
        self.scratch = [torch.empty_like(self.chunks[0]) for _ in range(len(ranks) - 1)]
        self.phases = phases
        self.tag = _FIRST_TAG + number * _TAGS_AN_EXCHANGE
        self.receives: dict[tuple[str, int], Any] = {}

    def post(self) -> None:
        """Posts the receives of all steps."""
        previous = self.ranks[self.position - 1]
        for phase in self.phases:
            for step in range(len(self.ranks) - 1):
                _, arriving = self._chunks_of(phase, step)
                size = self.chunks[arriving].numel()
                target = self.scratch[step][:size] if phase == "reduce" else self.chunks[arriving]
                self.receives[phase, step] = dist.irecv(target, previous, tag=self._tag(phase, step))

    def run(self) -> None:
        """Sends chunk after chunk to the next rank and adds or copies what arrives."""
        following = self.ranks[(self.position + 1) % len(self.ranks)]
        sends: list[Any] = []
        for phase in self.phases:
            for step in range(len(self.ranks) - 1):
                leaving, arriving = self._chunks_of(phase, step)
                sends.append(dist.isend(self.chunks[leaving], following, tag=self._tag(phase, step)))
                self.receives.pop((phase, step)).wait()
                if phase == "reduce":
                    self.chunks[arriving].add_(self.scratch[step][: self.chunks[arriving].numel()])
        for send in sends:
            send.wait()

    @property
    def own_chunk(self) -> Tensor:
        """The chunk that this rank holds the sum of after the reduce phase."""
        return self.chunks[(self.position + 1) % len(self.ranks)]

    def _chunks_of(self, phase: str, step: int) -> tuple[int, int]:
        first = self.position if phase == "reduce" else self.position + 1
        return (first - step) % len(self.ranks), (first - step - 1) % len(self.ranks)

    def _tag(self, phase: str, step: int) -> int:
        return self.tag + (0 if phase == "reduce" else _TAGS_AN_EXCHANGE // 2) + step


class Hierarchical:
    """Reduce-scatter inside the building, all-reduce of the piece across, all-gather inside."""

    def __init__(self, buffer: Tensor, inside: list[int], across: list[int], number: int) -> None:
        self.reduce = Ring(buffer, inside, 3 * number, ("reduce",))
        self.middle = Ring(self.reduce.own_chunk, across, 3 * number + 1, ("reduce", "gather"))
        self.gather = Ring(buffer, inside, 3 * number + 2, ("gather",))

    def post(self) -> None:
        """Posts the receives of all three rings."""
        for ring in (self.reduce, self.middle, self.gather):
            ring.post()

    def run(self) -> None:
        """Runs the three rings one after the other."""
        for ring in (self.reduce, self.middle, self.gather):
            ring.run()


class Gloo:
    """`dist.all_reduce`, as DDP calls it."""

    def __init__(self, buffer: Tensor, group: dist.ProcessGroup) -> None:
        self.buffer, self.group = buffer, group

    def post(self) -> None:
        """gloo posts its receives when it gets there."""

    def run(self) -> None:
        """Calls `dist.all_reduce`."""
        dist.all_reduce(self.buffer, group=self.group)


def _cut(buffer: Tensor, pieces: int) -> list[Tensor]:
    """The buffer in equal pieces; the last may be shorter."""
    size = -(-buffer.numel() // pieces)
    return [buffer[start : start + size] for start in range(0, size * pieces, size)]
