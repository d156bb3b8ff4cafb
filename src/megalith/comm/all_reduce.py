"""`AllReduce`: sums over ranks, bucket by bucket while the backward pass goes on, or at once.

DDP's hook starts buckets; replicated tables add up their gradients at once.

Ranks of one host write a bucket into shared memory and signal each other by pipe. When the backward pass is
over, each adds up what all have written, in the order of ranks: the same sum everywhere, no socket and no
thread in between. Ranks of several hosts use the collective of their backend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from megalith.comm.all_to_all import WAIT_FOR
from megalith.comm.peer_lost import peer_errors
from megalith.comm.peer_pipes import PeerPipes
from megalith.comm.shared_buffer import LocalPeers, SharedBuffer
from megalith.core.spans import span

MAX_SHARED_RANKS = 8
"""Every rank reads what all have written; from here on a ring moves less."""
_WRITTEN = b"!"


class _PendingBucket(NamedTuple):
    """A bucket that this rank has written."""

    gradients: Tensor
    parts: list[Tensor]
    """What every rank writes, its own included."""
    future: torch.futures.Future[Tensor]


class AllReduce:
    """Adds flat tensors over the ranks of a group; all ranks call it alike."""

    def __init__(self, group: dist.ProcessGroup, rank: int, world_size: int, peers: LocalPeers) -> None:
        self._group, self._rank, self._world_size, self._peers = group, rank, world_size, peers
        self._pipes: PeerPipes | None = None
        self._number = 0
        self._memory: dict[int, list[list[Tensor]]] = {}
        self._kept: list[SharedBuffer] = []
        self._turns: dict[int, int] = {}
        self._pending: list[_PendingBucket] = []
        is_gloo = dist.get_backend(group) == "gloo"
        if peers.all_same_host and world_size <= MAX_SHARED_RANKS and is_gloo:
            self._pipes = PeerPipes(group, rank, peers)

    def start_bucket(self, number: int, gradients: Tensor) -> torch.futures.Future[Tensor]:
        """Starts the sum of bucket `number` in a backward pass; the future holds it, in place."""
        if self._pipes is None:
            with peer_errors():
                work = dist.all_reduce(gradients, group=self._group, async_op=True)
            summed: torch.futures.Future[Tensor] = work.get_future().then(_value)
            return summed
        parts = self._write(self._pipes, number, gradients)
        if not self._pending:
            # Comes before DDP's own, which waits for the futures.
            Variable._execution_engine.queue_callback(self._finish)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._pending.append(_PendingBucket(gradients, parts, future))
        return future

    def add_(self, tensor: Tensor) -> None:
        """Adds up a flat tensor in place; not while buckets are under way."""
        if self._pipes is None:
            with peer_errors():
                dist.all_reduce(tensor, group=self._group)
        else:
            self._add(self._pipes, self._write(self._pipes, 0, tensor), tensor)

    @torch.no_grad()
    def _finish(self) -> None:
        assert self._pipes is not None
        pending, self._pending = self._pending, []
        for gradients, parts, future in pending:
            self._add(self._pipes, parts, gradients)
            future.set_result(gradients)

    def _write(self, pipes: PeerPipes, number: int, gradients: Tensor) -> list[Tensor]:
        """Writes a bucket for the others to read; where every rank writes its own."""
        parts = [part[: gradients.nbytes].view(gradients.dtype) for part in self._next_memory(number)]
        parts[self._rank].copy_(gradients)
        for other in range(self._world_size):
            if other != self._rank:
                pipes.send(other, _WRITTEN)
        return parts

    def _add(self, pipes: PeerPipes, parts: list[Tensor], out: Tensor) -> None:
        self._number += 1
        with span(f"{WAIT_FOR}sums", number=self._number):
            for other in range(self._world_size):
                if other != self._rank:
                    pipes.receive(other, len(_WRITTEN))
        torch.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            out.add_(part)

    def _next_memory(self, number: int) -> list[Tensor]:
        """Where every rank writes a bucket now. Two buffers take turns: whoever writes into one again has the
        others' signals of the other, which they send only after they have read this one."""
        if number not in self._memory:
            own = [SharedBuffer(), SharedBuffer()]
            theirs = self._peers.share(own, self._group)
            theirs[self._rank] = [buffer.memory for buffer in own]
            self._kept += own
            self._memory[number] = [[of_rank[turn] for of_rank in theirs] for turn in range(len(own))]
        turn = self._turns[number] = 1 - self._turns.get(number, 1)
        return self._memory[number][turn]


def _value(done: Any) -> Tensor:
    with peer_errors():
        value: Tensor = done.value()[0]
    return value
