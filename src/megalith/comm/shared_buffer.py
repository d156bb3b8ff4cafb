"""Memory that ranks of one host share: each writes into buffers of its own, the others map and read them.

Buffers are nameless (memfd), so that nothing stays behind however a process ends. `MEGALITH_SHARED_MEMORY=0`
turns sharing off.
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

from megalith.comm.peer_lost import peer_errors
from megalith.core.errors import PlanError

_CAPACITY = 1 << 35
"""Bytes of a buffer. Memory is taken only for what is written, so it never has to grow under its readers."""


class SharedBuffer:
    """Memory that this process writes and the other ranks of its host read."""

    _serials: ClassVar = itertools.count(1)

    def __init__(self) -> None:
        self.descriptor, self.serial = -1, 0
        self.memory = torch.empty(0, dtype=torch.uint8)

    def reserve(self, num_bytes: int) -> None:
        """Makes room for a message; memory is taken at the first call."""
        if num_bytes > _CAPACITY:
            raise PlanError(
                f"A message of {num_bytes:,} bytes is more than ranks of a host share; train with a smaller "
                "batch or set MEGALITH_SHARED_MEMORY=0."
            )
        if self.descriptor < 0:
            self.descriptor = os.memfd_create("megalith")
            # Descriptors are used again; serials never are.
            self.serial = next(self._serials)
            os.ftruncate(self.descriptor, _CAPACITY)
            self.memory = _mapped(self.descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class LocalPeers:
    """Which ranks of a group share memory with this one: each tries to read the others, and all compare.

    Made once by a `CommContext` and kept by its branches.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, world_size: int) -> None:
        proof, secret = SharedBuffer(), secrets.token_bytes(16)
        can_share = hasattr(os, "memfd_create") and os.environ.get("MEGALITH_SHARED_MEMORY") != "0"
        # The other ranks of a dry run are not there.
        can_share = can_share and dist.get_backend(group) != "fake"
        if can_share:
            try:
                proof.reserve(len(secret))
                proof.memory[: len(secret)] = torch.frombuffer(bytearray(secret), dtype=torch.uint8)
            except OSError:
                can_share = False
        own = (socket.gethostname(), os.getpid(), proof.descriptor, secret)
        described = gather_objects(own, group, world_size)
        readable = [can_share and _can_read(*rank_proof) for rank_proof in described]
        all_readable = gather_objects(readable, group, world_size)
        self.processes = [process for _, process, _, _ in described]
        """Process ids, by rank."""
        self.same_host = [
            readable[other] and all_readable[other][rank] and other != rank for other in range(world_size)
        ]
        """By rank, whether it shares memory with this one; False for this rank itself."""
        self.all_same_host = all(map(all, all_readable))
        """Whether all ranks of the group share memory."""
        self._mapped: dict[tuple[int, int], tuple[int, Tensor]] = {}

    def share(self, buffers: Sequence[SharedBuffer], group: dist.ProcessGroup) -> list[list[Tensor]]:
        """The buffers of every local peer, by rank, to be read; all ranks call it with as many of their own.

        They are mapped at once, so that they stay whatever becomes of the process that writes them.
        """
        if any(self.same_host):
            for buffer in buffers:
                buffer.reserve(0)
        described = gather_objects(
            [(buffer.descriptor, buffer.serial) for buffer in buffers], group, len(self.same_host)
        )
        mapped = [
            [self._memory(rank, *buffer) for buffer in of_rank] if same_host else []
            for rank, (same_host, of_rank) in enumerate(zip(self.same_host, described, strict=True))
        ]
        # No rank goes on, and perhaps ends, before all have mapped its buffers.
        with peer_errors():
            dist.barrier(group=group)
        return mapped

    def _memory(self, rank: int, descriptor: int, serial: int) -> Tensor:
        """The buffer of a local peer, to be read; mapped when it is met first."""
        known = self._mapped.get((rank, descriptor))
        if known is None or known[0] != serial:
            with peer_errors():
                opened = os.open(_path(self.processes[rank], descriptor), os.O_RDWR)
            try:
                known = serial, _mapped(opened)
            finally:
                os.close(opened)
            self._mapped[rank, descriptor] = known
        return known[1]


def gather_objects(own: Any, group: dist.ProcessGroup, world_size: int) -> list[Any]:
    """What every rank gives, by rank."""
    everyone: list[Any] = [None] * world_size
    with peer_errors():
        dist.all_gather_object(everyone, own, group=group)
    return everyone


def _path(process: int, descriptor: int) -> Path:
    return Path(f"/proc/{process}/fd/{descriptor}")


def _mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, _CAPACITY), dtype=torch.uint8)


def _can_read(host: str, process: int, descriptor: int, secret: bytes) -> bool:
    """Whether this process can map memory of that one: it lives on this host and lets us look."""
    if host != socket.gethostname():
        return False
    try:
        with _path(process, descriptor).open("rb") as file:
            return file.read(len(secret)) == secret
    except OSError:
        return False
