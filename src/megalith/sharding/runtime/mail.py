"""An all-to-all of bytes that does not send between processes of one machine what they can share.

Processes of a machine write into memory that the others map and read in place; what the collective then
carries to them is a note of where. To other machines it carries the bytes. The memory is nameless (memfd), so
that nothing stays behind however a process ends. `MEGALITH_SHARED_MEMORY=0` sends everything.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.sharding.runtime.traffic import Traffic

_NOTE = 3 * 8
"""Bytes of a note: descriptor of the memory, its number, where in it the message begins."""
_ALIGNMENT = 64


class _Box:
    """Memory that this process writes and its neighbours read; it grows as messages do."""

    _numbers: ClassVar = itertools.count(1)

    def __init__(self) -> None:
        self.descriptor, self.number = -1, 0
        self.memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int) -> None:
        if num_bytes <= len(self.memory) and self.descriptor >= 0:
            return
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = os.memfd_create("megalith")
        # Descriptors are used again; numbers never are.
        self.number = next(self._numbers)
        size = max(mmap.PAGESIZE, num_bytes + num_bytes // 8)
        os.ftruncate(self.descriptor, size)
        self.memory = _mapped(self.descriptor, size)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Neighbours:
    """Which ranks of a group share memory with this one: they try, and tell each other."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int) -> None:
        self.processes = [0] * world_size
        """Process numbers, by rank."""
        self.near = [False] * world_size
        if group is None:
            return
        proof, secret = _Box(), secrets.token_bytes(16)
        willing = hasattr(os, "memfd_create") and os.environ.get("MEGALITH_SHARED_MEMORY") != "0"
        if willing:
            proof.reserve(len(secret))
            proof.memory[: len(secret)] = torch.frombuffer(bytearray(secret), dtype=torch.uint8)
        mine = (socket.gethostname(), os.getpid(), proof.descriptor, secret)
        everyone: list[tuple[str, int, int, bytes]] = [mine] * world_size
        dist.all_gather_object(everyone, mine, group=group)
        seen = [willing and _can_read(*one) for one in everyone]
        all_seen: list[list[bool]] = [seen] * world_size
        dist.all_gather_object(all_seen, seen, group=group)
        self.processes = [process for _, process, _, _ in everyone]
        self.near = [seen[other] and all_seen[other][rank] and other != rank for other in range(world_size)]


class Posted(NamedTuple):
    """Mail on its way."""

    work: dist.Work
    sent: Tensor
    received: Tensor
    sizes: list[int]


class Mail:
    """The mail of one kind between the ranks of a group.

    What was collected may be read until mail of the same kind is opened again, `depth` times over. All ranks
    open, post and collect in the same order, and each collects before it opens once more.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        rank: int,
        neighbours: Neighbours,
        traffic: Traffic,
        depth: int = 1,
    ) -> None:
        self._name, self._group, self._rank, self._traffic = name, group, rank, traffic
        self._near, self._processes = neighbours.near, neighbours.processes
        self._boxes, self._turn = [_Box() for _ in range(depth)], 0
        self._mapped: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._sent_sizes: list[int] = []
        self._shared = 0

    def open(self, sizes: Sequence[int]) -> list[Tensor]:
        """Where to write what each rank is sent: uint8 of `sizes`; what a rank sends itself is not sent."""
        self._turn = (self._turn + 1) % len(self._boxes)
        box = self._boxes[self._turn]
        places, at = [], 0
        for near, size in zip(self._near, sizes, strict=True):
            places.append(at)
            at += -(-size // _ALIGNMENT) * _ALIGNMENT if near else 0
        if at:
            box.reserve(at)
        self._sent_sizes = [
            0 if rank == self._rank else _NOTE if near and size else size
            for rank, (near, size) in enumerate(zip(self._near, sizes, strict=True))
        ]
        self._sent = torch.empty(sum(self._sent_sizes), dtype=torch.uint8)
        self._shared = sum(
            size - _NOTE for near, size in zip(self._near, sizes, strict=True) if near and size
        )
        opened = []
        for place, near, size, part in zip(
            places, self._near, sizes, self._sent.split(self._sent_sizes), strict=True
        ):
            if near and size:
                note = torch.tensor([box.descriptor, box.number, place])
                part.copy_(note.view(torch.uint8))
                opened.append(box.memory[place : place + size])
            else:
                opened.append(part)
        return opened

    def post(self, sizes: Sequence[int]) -> Posted:
        """Sends what was written; `sizes` of what arrives from each rank."""
        expected = [
            0 if rank == self._rank else _NOTE if near and size else size
            for rank, (near, size) in enumerate(zip(self._near, sizes, strict=True))
        ]
        received = torch.empty(sum(expected), dtype=torch.uint8)
        # Counted as if it were sent: what the exchange moves does not depend on where ranks live.
        work = self._traffic.all_to_all(
            *(self._name, received, self._sent, expected, self._sent_sizes, self._group),
            kept_bytes=-self._shared,
        )
        return Posted(work, self._sent, received, list(sizes))

    def collect(self, posted: Posted) -> list[Tensor]:
        """Waits, and returns what each rank sent: to be read, not written."""
        posted.work.wait()
        arrived, at = [], 0
        for rank, (near, size) in enumerate(zip(self._near, posted.sizes, strict=True)):
            if rank == self._rank:
                arrived.append(posted.received[:0])
            elif near and size:
                note = posted.received[at : at + _NOTE].clone().view(torch.int64)
                descriptor, number, place = note.tolist()
                at += _NOTE
                arrived.append(self._memory(rank, descriptor, number)[place : place + size])
            else:
                arrived.append(posted.received[at : at + size])
                at += size
        return arrived

    def _memory(self, rank: int, descriptor: int, number: int) -> Tensor:
        known = self._mapped.get((rank, descriptor))
        if known is None or known[0] != number:
            opened = os.open(_path(self._processes[rank], descriptor), os.O_RDWR)
            try:
                known = number, _mapped(opened, os.fstat(opened).st_size)
            finally:
                os.close(opened)
            self._mapped[rank, descriptor] = known
        return known[1]


def _path(process: int, descriptor: int) -> Path:
    return Path(f"/proc/{process}/fd/{descriptor}")


def _mapped(descriptor: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _can_read(host: str, process: int, descriptor: int, secret: bytes) -> bool:
    """Whether this process can map memory of that one: it lies on this machine and lets us look."""
    if host != socket.gethostname():
        return False
    try:
        with _path(process, descriptor).open("rb") as file:
            return file.read(len(secret)) == secret
    except OSError:
        return False
