"""Memory that processes of one machine share: each writes into its own boxes, the others map and read them.

It is nameless (memfd), so that nothing stays behind however a process ends. `MEGALITH_SHARED_MEMORY=0` lets
nobody share.
"""

from __future__ import annotations

import itertools
import mmap
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.core.errors import PlanError

_CAPACITY = 1 << 35
"""Bytes of a box. Memory is taken only for what is written, so a box never has to grow under its readers."""


class Box:
    """Memory that this process writes and its neighbours read."""

    _numbers: ClassVar = itertools.count(1)

    def __init__(self) -> None:
        self.descriptor, self.number = -1, 0
        self.memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int) -> None:
        """Sees to it that there is room for a message."""
        if num_bytes > _CAPACITY:
            raise PlanError(
                f"A message of {num_bytes:,} bytes is more than processes of a machine share; train with a "
                "smaller batch or set MEGALITH_SHARED_MEMORY=0."
            )
        if self.descriptor < 0:
            self.descriptor = os.memfd_create("megalith")
            # Descriptors are used again; numbers never are.
            self.number = next(self._numbers)
            os.ftruncate(self.descriptor, _CAPACITY)
            self.memory = _mapped(self.descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class Neighbours:
    """Which ranks of a group share memory with this one: they try, and tell each other."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int, world_size: int) -> None:
        self.processes = [0] * world_size
        """Process numbers, by rank."""
        self.near = [False] * world_size
        self.all_near = False
        """Whether no rank of the group is without another."""
        self._mapped: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._group = group
        if group is None:
            return
        proof, secret = Box(), secrets.token_bytes(16)
        willing = hasattr(os, "memfd_create") and os.environ.get("MEGALITH_SHARED_MEMORY") != "0"
        # The other ranks of a dry run are not there.
        willing = willing and dist.get_backend(group) != "fake"
        if willing:
            try:
                proof.reserve(len(secret))
                proof.memory[: len(secret)] = torch.frombuffer(bytearray(secret), dtype=torch.uint8)
            except OSError:
                willing = False
        mine = (socket.gethostname(), os.getpid(), proof.descriptor, secret)
        everyone = self._gather(mine)
        seen = [willing and _can_read(*one) for one in everyone]
        all_seen = self._gather(seen)
        self.processes = [process for _, process, _, _ in everyone]
        self.near = [seen[other] and all_seen[other][rank] and other != rank for other in range(world_size)]
        self.all_near = all(all(some) for some in all_seen)

    def share(self, boxes: Sequence[Box]) -> list[list[Tensor]]:
        """The boxes of every neighbour, by rank, to be read; all ranks call it with as many of their own.

        They are mapped at once, so that they stay whatever becomes of the process that writes them.
        """
        if any(self.near):
            for box in boxes:
                box.reserve(0)
        theirs = self._gather([(box.descriptor, box.number) for box in boxes])
        mapped = [
            [self.memory(rank, *one) for one in some] if near else []
            for rank, (near, some) in enumerate(zip(self.near, theirs, strict=True))
        ]
        # Nobody goes on, and perhaps ends, before all have mapped what is his.
        dist.barrier(group=self._group)
        return mapped

    def _gather(self, mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * len(self.processes)
        dist.all_gather_object(everyone, mine, group=self._group)
        return everyone

    def memory(self, rank: int, descriptor: int, number: int) -> Tensor:
        """The box of a neighbour, to be read; mapped when it is met first."""
        known = self._mapped.get((rank, descriptor))
        if known is None or known[0] != number:
            opened = os.open(_path(self.processes[rank], descriptor), os.O_RDWR)
            try:
                known = number, _mapped(opened)
            finally:
                os.close(opened)
            self._mapped[rank, descriptor] = known
        return known[1]


def _path(process: int, descriptor: int) -> Path:
    return Path(f"/proc/{process}/fd/{descriptor}")


def _mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, _CAPACITY), dtype=torch.uint8)


def _can_read(host: str, process: int, descriptor: int, secret: bytes) -> bool:
    """Whether this process can map memory of that one: it lies on this machine and lets us look."""
    if host != socket.gethostname():
        return False
    try:
        with _path(process, descriptor).open("rb") as file:
            return file.read(len(secret)) == secret
    except OSError:
        return False
