"""One site: a process that waits as long as its operations take, and sends real bytes over real links.

It takes a command a line from standard input and answers with one line of JSON. A pair of sites has one
connection, over the addresses of its own link; a thread sends what is queued on it, another receives.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from queue import SimpleQueue
from statistics import median
from typing import Any

HEADER = struct.Struct("!II")
PORT = 29600


class Peer:
    """The connection to one other site."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._outgoing: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
        self._arrived: dict[int, SimpleQueue[bytes]] = defaultdict(SimpleQueue)
        for target in (self._send, self._receive):
            threading.Thread(target=target, daemon=True).start()

    def send(self, tag: int, data: bytes) -> None:
        """Queues a message; it leaves when those before it have."""
        self._outgoing.put((tag, data))

    def take(self, tag: int) -> bytes:
        """Waits for the next message with this tag."""
        return self._arrived[tag].get()

    def _send(self) -> None:
        while True:
            tag, data = self._outgoing.get()
            self._connection.sendall(HEADER.pack(tag, len(data)))
            self._connection.sendall(data)

    def _receive(self) -> None:
        while True:
            head = self._exactly(HEADER.size)
            tag, size = HEADER.unpack(head)
            self._arrived[tag].put(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            got = self._connection.recv(min(1 << 20, size - len(parts)))
            if not got:
                sys.exit(0)
            parts += got
        return bytes(parts)


class Site:
    """What a site does in each kind of step."""

    def __init__(self, site: int, addresses: dict[int, tuple[str, str]]) -> None:
        self.site, self.count = site, len(addresses) + 1
        self.peers = {other: Peer(self._connect(other, *pair)) for other, pair in sorted(addresses.items())}

    def _connect(self, other: int, own: str, theirs: str) -> socket.socket:
        if self.site < other:
            with socket.create_server((own, PORT)) as server:
                return server.accept()[0]
        while True:
            try:
                return socket.create_connection((theirs, PORT), timeout=60)
            except ConnectionRefusedError:
                time.sleep(0.05)

    def link(self, first: int, second: int, size: int, repeats: int) -> dict[str, float] | None:
        """Latency from small messages there and back, bandwidth from large ones."""
        if self.site not in (first, second):
            return None
        peer, leads = self.peers[second if self.site == first else first], self.site == first
        for _ in range(3):
            self._there_and_back(peer, leads, size)
        small = median(self._there_and_back(peer, leads, 4) for _ in range(repeats))
        large = median(self._there_and_back(peer, leads, size) for _ in range(repeats))
        return {"latency_seconds": small / 2, "bytes_per_second": 2 * size / (large - small)}

    def _there_and_back(self, peer: Peer, leads: bool, size: int) -> float:
        data = bytes(size)
        start = time.monotonic()
        if leads:
            peer.send(1, data)
            peer.take(1)
        else:
            peer.take(1)
            peer.send(1, data)
        return time.monotonic() - start

    def pipeline(self, order: list[tuple[str, int]], seconds: dict[str, float], size: int) -> None:
        """One stage of a pipeline over all sites, in the order given."""
        before, behind, data = self.site - 1, self.site + 1, bytes(size)
        for kind, micro_batch in order:
            tag = 100 + 2 * micro_batch + (kind != "F")
            source, target = (before, behind) if kind == "F" else (behind, before)
            if source in self.peers and kind != "W":
                self.peers[source].take(tag)
            time.sleep(seconds[kind])
            if target in self.peers and kind != "W":
                self.peers[target].send(tag, data)

    def replicas(self, seconds: float, size: int, ring: list[int]) -> None:
        """All micro-batches, then one all-reduce round the ring."""
        time.sleep(seconds)
        self.ring(2 * (self.count - 1), size, ring, 3)

    def sharded(self, layers: int, forward: float, backward: float, size: int, ring: list[int]) -> None:
        """Every layer gathered for its forward and its backward, one ahead, and its gradients scattered."""
        work: SimpleQueue[tuple[int, threading.Event] | None] = SimpleQueue()

        def communicate() -> None:
            while (item := work.get()) is not None:
                self.ring(self.count - 1, size, ring, 4)
                item[1].set()

        stream = threading.Thread(target=communicate)
        stream.start()
        operations = [forward] * layers + [backward] * layers
        gathered = [threading.Event() for _ in operations]
        work.put((0, gathered[0]))
        last = threading.Event()
        for index, seconds in enumerate(operations):
            gathered[index].wait()
            if index + 1 < len(operations):
                work.put((index + 1, gathered[index + 1]))
            time.sleep(seconds)
            if index >= layers:
                last = threading.Event()
                work.put((index, last))
        work.put(None)
        stream.join()

    def ring(self, steps: int, size: int, ring: list[int], tag: int) -> None:
        """Steps of a ring, each with a share of the vector to the next site and one from the site before."""
        at = ring.index(self.site)
        following, before = self.peers[ring[(at + 1) % self.count]], self.peers[ring[at - 1]]
        data = bytes(size // self.count)
        for _ in range(steps):
            following.send(tag, data)
            before.take(tag)

    def meet(self) -> float:
        """A moment of the machine's clock, a little ahead, at which all sites begin."""
        if self.site == 0:
            for peer in self.peers.values():
                peer.take(2)
            start = time.monotonic() + self.margin
            for peer in self.peers.values():
                peer.send(2, struct.pack("!d", start))
            return start
        self.peers[0].send(2, b"")
        (start,) = struct.unpack("!d", self.peers[0].take(2))
        return float(start)

    margin = 0.3

    def steps(self, kind: str, arguments: list[dict[str, Any]], count: int) -> list[tuple[float, float]]:
        """When each step began for all and when this site was done."""
        moments = []
        for _ in range(count):
            start = self.meet()
            time.sleep(max(0.0, start - time.monotonic()))
            getattr(self, kind)(**arguments[self.site])
            moments.append((start, time.monotonic()))
        return moments


def main(site: int, addresses: dict[int, tuple[str, str]]) -> None:
    """Serves commands until standard input ends."""
    here = Site(site, addresses)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(here, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), {int(key): tuple(pair) for key, pair in json.loads(sys.argv[2]).items()})
