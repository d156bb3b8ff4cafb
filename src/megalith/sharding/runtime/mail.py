"""An all-to-all of bytes that does not send between processes of one machine what they can share.

Processes of a machine write into memory that the others map and read in place (`shared_memory.py`); a note
of where goes by pipe (`wires.py`). To other machines a collective carries the bytes, where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.sharding.runtime.shared_memory import Box, Neighbours
from megalith.sharding.runtime.traffic import Traffic
from megalith.sharding.runtime.wires import Wires

_NOTE = 16
"""Bytes of a note: where in the box the message begins, and its size."""
_ALIGNMENT = 64


class Posted(NamedTuple):
    """Mail on its way."""

    work: dist.Work | None
    sent: Tensor
    received: Tensor
    sizes: list[int]
    turn: int


class Mail:
    """The mail of one kind between the ranks of a group.

    What was collected may be read until mail of the same kind is opened again, `depth` times over. All ranks
    open, post and collect in the same order, and each collects before it opens once more. Neighbours send
    each other a note even when there is no message: whoever has it knows that all before it has been read.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        rank: int,
        neighbours: Neighbours,
        wires: Wires,
        traffic: Traffic,
        depth: int = 1,
    ) -> None:
        self._name, self._group, self._rank, self._traffic = name, group, rank, traffic
        self._near, self._wires, self._all_near = neighbours.near, wires, neighbours.all_near
        self._boxes, self._turn = [Box() for _ in range(depth)], 0
        self._theirs = neighbours.share(self._boxes)
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._sent_sizes: list[int] = []
        self._notes: list[bytes] = []
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
        self._sent_sizes = self._wire_sizes(sizes)
        self._sent = torch.empty(sum(self._sent_sizes), dtype=torch.uint8)
        self._shared = sum(size for near, size in zip(self._near, sizes, strict=True) if near)
        self._notes = [
            place.to_bytes(_NOTE // 2, "little") + size.to_bytes(_NOTE // 2, "little")
            for place, size in zip(places, sizes, strict=True)
        ]
        parts = self._sent.split(self._sent_sizes)
        return [
            box.memory[place : place + size] if near else part
            for place, near, size, part in zip(places, self._near, sizes, parts, strict=True)
        ]

    def post(self, sizes: Sequence[int]) -> Posted:
        """Sends what was written; `sizes` of what arrives from each rank: a neighbour's note tells it too."""
        expected = self._wire_sizes(sizes)
        received = torch.empty(sum(expected), dtype=torch.uint8)
        for rank, (near, note) in enumerate(zip(self._near, self._notes, strict=True)):
            if near:
                self._wires.send(rank, note)
        # Counted as if it were sent: what the exchange moves does not depend on where ranks live.
        if self._all_near:
            self._traffic.count(self._name, self._shared)
            return Posted(None, self._sent, received, list(sizes), self._turn)
        work = self._traffic.all_to_all(
            *(self._name, received, self._sent, expected, self._sent_sizes, self._group),
            kept_bytes=-self._shared,
        )
        return Posted(work, self._sent, received, list(sizes), self._turn)

    def collect(self, posted: Posted) -> list[Tensor]:
        """Waits, and returns what each rank sent: to be read, not written."""
        if posted.work is not None:
            posted.work.wait()
        arrived, at = [], 0
        for rank, (near, size) in enumerate(zip(self._near, posted.sizes, strict=True)):
            if rank == self._rank:
                arrived.append(posted.received[:0])
            elif near:
                note = self._wires.receive(rank, _NOTE)
                place = int.from_bytes(note[: _NOTE // 2], "little")
                end = place + int.from_bytes(note[_NOTE // 2 :], "little")
                arrived.append(self._theirs[rank][posted.turn][place:end])
            else:
                arrived.append(posted.received[at : at + size])
                at += size
        return arrived

    def _wire_sizes(self, sizes: Sequence[int]) -> list[int]:
        """What the collective carries: nothing to neighbours and to itself."""
        return [
            0 if rank == self._rank or near else size
            for rank, (near, size) in enumerate(zip(self._near, sizes, strict=True))
        ]
