"""Dense gradients added up over ranks: bucket by bucket while the backward pass goes on, or at once.

Ranks of one machine write a bucket into shared memory and tell each other by pipe. When the backward pass is
over, each adds up what all have written, in the order of ranks: the same sum everywhere, no socket and no
thread in between. Ranks of several machines use the collective of their backend.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from megalith.sharding.runtime.shared_memory import Box, Neighbours
from megalith.sharding.runtime.wires import Wires

_MOST_RANKS = 8
"""Everyone reads what all have written; from here on a ring moves less."""
_WRITTEN = b"!"


class _Waiting(NamedTuple):
    """A bucket that this rank has written."""

    gradients: Tensor
    parts: list[Tensor]
    """What every rank writes, its own included."""
    future: torch.futures.Future[Tensor]


class GradientSum:
    """Adds buckets over the ranks of a group, called in a backward pass; all call it alike."""

    def __init__(self, group: dist.ProcessGroup, rank: int, world_size: int) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._wires: Wires | None = None
        self._boxes: dict[int, list[list[Tensor]]] = {}
        self._kept: list[Box] = []
        self._turns: dict[int, int] = {}
        self._waiting: list[_Waiting] = []
        if 1 < world_size <= _MOST_RANKS and dist.get_backend(group) == "gloo":
            self._neighbours = Neighbours(group, rank, world_size)
            if self._neighbours.all_near:
                self._wires = Wires(group, rank, self._neighbours)

    def __call__(self, number: int, gradients: Tensor) -> torch.futures.Future[Tensor]:
        """Starts the sum of bucket `number`, which is flat; the future holds it, in place."""
        if self._wires is None:
            work = dist.all_reduce(gradients, group=self._group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        parts = self._write(self._wires, number, gradients)
        if not self._waiting:
            # Comes before DDP's own, which waits for the futures.
            Variable._execution_engine.queue_callback(self._finish)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._waiting.append(_Waiting(gradients, parts, future))
        return future

    @torch.no_grad()
    def _finish(self) -> None:
        assert self._wires is not None
        waiting, self._waiting = self._waiting, []
        for gradients, parts, future in waiting:
            self._add(self._wires, parts, gradients)
            future.set_result(gradients)

    def at_once(self, gradients: Tensor) -> None:
        """Adds up a flat tensor in place; not together with buckets."""
        if self._wires is None:
            dist.all_reduce(gradients, group=self._group)
        else:
            self._add(self._wires, self._write(self._wires, 0, gradients), gradients)

    def _write(self, wires: Wires, number: int, gradients: Tensor) -> list[Tensor]:
        """Writes a bucket for the others to read; where every rank writes its own."""
        parts = [part[: gradients.nbytes].view(gradients.dtype) for part in self._next_boxes(number)]
        parts[self._rank].copy_(gradients)
        for other in range(self._world_size):
            if other != self._rank:
                wires.send(other, _WRITTEN)
        return parts

    def _add(self, wires: Wires, parts: list[Tensor], out: Tensor) -> None:
        for other in range(self._world_size):
            if other != self._rank:
                wires.receive(other, len(_WRITTEN))
        torch.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            out.add_(part)

    def _next_boxes(self, number: int) -> list[Tensor]:
        """Where every rank writes a bucket now. Two boxes take turns: whoever writes into one again has the
        others' notes of the other, which they send only after they have read this one."""
        if number not in self._boxes:
            own = [Box(), Box()]
            theirs = self._neighbours.share(own)
            theirs[self._rank] = [box.memory for box in own]
            self._kept += own
            self._boxes[number] = [[some[turn] for some in theirs] for turn in range(len(own))]
        turn = self._turns[number] = 1 - self._turns.get(number, 1)
        return self._boxes[number][turn]
