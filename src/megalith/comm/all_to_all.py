"""`AllToAll`: an all-to-all of bytes in which ranks of one host share memory instead of sending.

They write into memory that the others map and read in place (`shared_buffer.py`); where the message lies goes
by pipe (`peer_pipes.py`). To other hosts, where there are any, a collective carries it. Every stage of the
sharded runtime that sends has one of its own, from its `CommContext`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.peer_lost import peer_errors
from megalith.comm.peer_pipes import PeerPipes
from megalith.comm.shared_buffer import LocalPeers, SharedBuffer
from megalith.comm.traffic import TrafficCounter
from megalith.core.spans import span

WAIT_FOR = "wait for "
"""Spans of waiting for other ranks begin so. By its name and `number` one is found on all ranks."""
_SIGNAL = 16
"""Bytes of a signal: where in the buffer the message begins, and its size."""
_ALIGNMENT = 64


class PendingExchange(NamedTuple):
    """What `start` began and `wait` finishes."""

    work: dist.Work | None
    sent: Tensor
    received: Tensor
    sizes: list[int]
    turn: int


class AllToAll:
    """Exchanges of one kind between the ranks of a group.

    What `wait` returned may be read until `buffers` is called again, `depth` times over. All ranks call
    `buffers`, `start` and `wait` in the same order, and each waits before it starts once more. Local peers
    signal each other even when there is no message: whoever has the signal knows that all before it has been
    read.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        rank: int,
        peers: LocalPeers,
        pipes: PeerPipes,
        traffic: TrafficCounter,
        depth: int = 1,
    ) -> None:
        self._name, self._group, self._rank, self._traffic = name, group, rank, traffic
        self._same_host, self._pipes, self._all_same_host = peers.same_host, pipes, peers.all_same_host
        self._buffers, self._turn = [SharedBuffer() for _ in range(depth)], 0
        self._theirs = peers.share(self._buffers, group)
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._sent_sizes: list[int] = []
        self._signals: list[bytes] = []
        self._shared = self._number = 0

    def buffers(self, sizes: Sequence[int]) -> list[Tensor]:
        """Where to write what each rank is sent: uint8 of `sizes`; what a rank sends itself is not sent."""
        self._turn = (self._turn + 1) % len(self._buffers)
        buffer = self._buffers[self._turn]
        starts, end = [], 0
        for local, size in zip(self._same_host, sizes, strict=True):
            starts.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT if local else 0
        if end:
            buffer.reserve(end)
        self._sent_sizes = self._remote_sizes(sizes)
        self._sent = torch.empty(sum(self._sent_sizes), dtype=torch.uint8)
        self._shared = sum(size for local, size in zip(self._same_host, sizes, strict=True) if local)
        self._signals = [
            start.to_bytes(_SIGNAL // 2, "little") + size.to_bytes(_SIGNAL // 2, "little")
            for start, size in zip(starts, sizes, strict=True)
        ]
        remote = torch.split(self._sent, self._sent_sizes)
        return [
            buffer.memory[start : start + size] if local else part
            for start, local, size, part in zip(starts, self._same_host, sizes, remote, strict=True)
        ]

    def start(self, sizes: Sequence[int]) -> PendingExchange:
        """Sends what was written; `sizes` of what arrives from each rank; local peers signal theirs."""
        expected = self._remote_sizes(sizes)
        received = torch.empty(sum(expected), dtype=torch.uint8)
        for rank, (local, signal) in enumerate(zip(self._same_host, self._signals, strict=True)):
            if local:
                self._pipes.send(rank, signal)
        self._traffic.count(self._name, self._sent.numel() + self._shared)
        work = None
        if not self._all_same_host:
            with peer_errors():
                work = dist.all_to_all_single(
                    *(received, self._sent, expected, self._sent_sizes), group=self._group, async_op=True
                )
        return PendingExchange(work, self._sent, received, list(sizes), self._turn)

    def wait(self, pending: PendingExchange) -> list[Tensor]:
        """Waits, and returns what each rank sent: to be read, not written."""
        self._number += 1
        with span(f"{WAIT_FOR}{self._name}", number=self._number):
            return self._wait(pending)

    def _wait(self, pending: PendingExchange) -> list[Tensor]:
        if pending.work is not None:
            with peer_errors():
                pending.work.wait()
        arrived, end = [], 0
        for rank, (local, size) in enumerate(zip(self._same_host, pending.sizes, strict=True)):
            if rank == self._rank:
                arrived.append(pending.received[:0])
            elif local:
                signal = self._pipes.receive(rank, _SIGNAL)
                start = int.from_bytes(signal[: _SIGNAL // 2], "little")
                stop = start + int.from_bytes(signal[_SIGNAL // 2 :], "little")
                arrived.append(self._theirs[rank][pending.turn][start:stop])
            else:
                arrived.append(pending.received[end : end + size])
                end += size
        return arrived

    def _remote_sizes(self, sizes: Sequence[int]) -> list[int]:
        """What the collective carries: nothing to local peers and to itself."""
        return [
            0 if rank == self._rank or local else size
            for rank, (local, size) in enumerate(zip(self._same_host, sizes, strict=True))
        ]
