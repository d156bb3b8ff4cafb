"""Short notes between processes of one machine, by pipe: a few microseconds, and no thread has to wake up.

A collective of gloo, however small, goes through threads and sockets of both sides: half a millisecond of
processor time, which a step pays several times. The end of a process closes its pipes, so that whoever waits
for it is told.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megalith.sharding.runtime.shared_memory import Neighbours

_PATIENCE_SECONDS = 1800
"""As long as collectives wait by default for a rank that says nothing."""


class Wires:
    """Pipes to and from every neighbour of a rank; all ranks of a group make them together."""

    def __init__(self, group: dist.ProcessGroup, rank: int, neighbours: Neighbours) -> None:
        near = [other for other, is_near in enumerate(neighbours.near) if is_near]
        pipes = {other: os.pipe() for other in near}
        mine = {other: writer for other, (_, writer) in pipes.items()}
        everyone: list[Any] = [None] * len(neighbours.near)
        dist.all_gather_object(everyone, mine, group=group)
        self._readers = {other: reader for other, (reader, _) in pipes.items()}
        self._writers = {
            other: os.open(
                Path(f"/proc/{neighbours.processes[other]}/fd/{everyone[other][rank]}"), os.O_WRONLY
            )
            for other in near
        }
        # When all have opened their ends, those that are left in other hands end with their processes.
        dist.barrier(group=group)
        for writer in mine.values():
            os.close(writer)
        self._polls = {other: select.poll() for other in near}
        for other, poll in self._polls.items():
            poll.register(self._readers[other], select.POLLIN)

    def send(self, rank: int, note: bytes) -> None:
        """Leaves a note for a neighbour and returns; notes arrive in order."""
        try:
            os.write(self._writers[rank], note)
        except BrokenPipeError as error:
            raise ConnectionResetError(f"Connection closed: rank {rank} has ended.") from error

    def receive(self, rank: int, num_bytes: int) -> bytes:
        """Waits for a neighbour's next note, which has so many bytes."""
        if not self._polls[rank].poll(1000 * _PATIENCE_SECONDS):
            raise TimeoutError(f"Connection closed: rank {rank} has said nothing for {_PATIENCE_SECONDS} s.")
        note = os.read(self._readers[rank], num_bytes)
        if len(note) < num_bytes:
            raise ConnectionResetError(f"Connection closed: rank {rank} has ended.")
        return note

    def __del__(self) -> None:
        for end in (*getattr(self, "_readers", {}).values(), *getattr(self, "_writers", {}).values()):
            os.close(end)
