"""Dense gradients added up over ranks, bucket by bucket, while the backward pass goes on.

Ranks of one machine write a bucket into shared memory, tell each other where, and each adds up what all have
written, in the order of ranks: the same sum everywhere, and nothing goes through sockets. Ranks of several
machines use the collective of their backend.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.sharding.runtime.shared_memory import Box, Neighbours

_MOST_RANKS = 8
"""Everyone reads what all have written; from here on a ring moves less."""


class GradientSum:
    """Adds tensors over the ranks of a group; all call it alike."""

    def __init__(self, group: dist.ProcessGroup, rank: int, world_size: int) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._neighbours: Neighbours | None = None
        self._boxes: dict[int, tuple[Box, Box]] = {}
        self._turns: dict[int, int] = {}
        if world_size <= _MOST_RANKS and dist.get_backend(group) == "gloo":
            neighbours = Neighbours(group, rank, world_size)
            alone = torch.tensor(sum(neighbours.near) < world_size - 1, dtype=torch.int32)
            dist.all_reduce(alone, group=group)
            if not alone:
                self._neighbours = neighbours

    def __call__(self, number: int, gradients: Tensor) -> torch.futures.Future[Tensor]:
        """Starts the sum of bucket `number`, which is flat; the future holds it, in place."""
        if self._neighbours is None:
            work = dist.all_reduce(gradients, group=self._group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        neighbours, rank, num_bytes = self._neighbours, self._rank, gradients.nbytes
        box = self._next_box(number)
        box.reserve(num_bytes)
        box.memory[:num_bytes].view(gradients.dtype).copy_(gradients)
        note = torch.tensor([[box.descriptor, box.number]] * self._world_size)
        notes = torch.empty_like(note)
        work = dist.all_to_all_single(notes, note, group=self._group, async_op=True)

        def add_up(_: torch.futures.Future[list[Tensor]]) -> Tensor:
            boxes = [
                box.memory if other == rank else neighbours.memory(other, *where)
                for other, where in enumerate(notes.tolist())
            ]
            parts = [memory[:num_bytes].view(gradients.dtype) for memory in boxes]
            torch.add(parts[0], parts[1], out=gradients)
            for part in parts[2:]:
                gradients.add_(part)
            return gradients

        return work.get_future().then(add_up)

    def _next_box(self, number: int) -> Box:
        """Two take turns: whoever writes into one again has the others' notes of the other, which they send
        only after they have read this one."""
        turn = self._turns[number] = 1 - self._turns.get(number, 1)
        return self._boxes.setdefault(number, (Box(), Box()))[turn]
