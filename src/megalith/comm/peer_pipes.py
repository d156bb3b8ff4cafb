"""Signals between ranks of one host, by pipe: a few microseconds, and no thread has to wake up.

A collective of gloo, however small, goes through threads and sockets of both sides: half a millisecond of
processor time, which a step pays several times. The end of a process closes its pipes, so that whoever waits
for it is told.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

import torch.distributed as dist

from megalith.comm.peer_lost import PeerLostError, peer_errors
from megalith.comm.shared_buffer import LocalPeers, gather_objects

_TIMEOUT_SECONDS = 1800
"""As long as collectives wait by default for a rank that sends nothing."""


class PeerPipes:
    """Pipes to and from every local peer of a rank; all ranks of a group make them together.

    Owned by a `CommContext` or an `AllReduce`.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, peers: LocalPeers) -> None:
        local = [other for other, same_host in enumerate(peers.same_host) if same_host]
        pipes = {other: os.pipe() for other in local}
        own = {other: writer for other, (_, writer) in pipes.items()}
        described = gather_objects(own, group, len(peers.same_host))
        self._readers = {other: reader for other, (reader, _) in pipes.items()}
        with peer_errors():
            self._writers = {
                other: os.open(
                    Path(f"/proc/{peers.processes[other]}/fd/{described[other][rank]}"), os.O_WRONLY
                )
                for other in local
            }
            # Each end then has one holder: it closes with that process, and the other side is told.
            dist.barrier(group=group)
        for writer in own.values():
            os.close(writer)
        self._polls = {other: select.poll() for other in local}
        for other, poll in self._polls.items():
            poll.register(self._readers[other], select.POLLIN)

    def send(self, rank: int, signal: bytes) -> None:
        """Leaves a signal for a local peer and returns; signals arrive in order."""
        try:
            os.write(self._writers[rank], signal)
        except BrokenPipeError as error:
            raise PeerLostError(f"rank {rank} has ended") from error

    def receive(self, rank: int, num_bytes: int) -> bytes:
        """Waits for a local peer's next signal, which has so many bytes."""
        if not self._polls[rank].poll(1000 * _TIMEOUT_SECONDS):
            raise PeerLostError(f"timed out after {_TIMEOUT_SECONDS} s of waiting for rank {rank}")
        signal = os.read(self._readers[rank], num_bytes)
        if len(signal) < num_bytes:
            raise PeerLostError(f"rank {rank} has ended")
        return signal

    def __del__(self) -> None:
        for end in (*getattr(self, "_readers", {}).values(), *getattr(self, "_writers", {}).values()):
            os.close(end)
