"""What processes of one machine get while they share it: memory, shared memory, sockets of the loopback.

Threads stand for processes: copies, sums and sockets run outside the interpreter's lock, and the memory
system does not tell the two apart. As many as there are cores work at a time, as neighbours in a step do.
"""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

MESSAGE_BYTES = 2**22
"""Of what a worker sends its neighbours in a step, the order of magnitude."""
RING_BYTES = 2**20
"""Pieces in which gloo sends a vector around a ring."""
_NOTE_BYTES = 64


def together(works: list[Callable[[], None]], seconds: float) -> float:
    """Rounds per second of each, all at work at the same time for about `seconds`."""
    barrier, rates = threading.Barrier(len(works)), [0.0] * len(works)

    def run(place: int) -> None:
        works[place]()
        barrier.wait()
        begin, rounds = perf_counter(), 0
        while rounds == 0 or perf_counter() - begin < seconds:
            works[place]()
            rounds += 1
        rates[place] = rounds / max(perf_counter() - begin, 1e-9)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates) / len(rates)


def memory_rates(cores: int, seconds: float, mebibytes: int = 64) -> tuple[float, float]:
    """Bytes per second of copies that no cache holds, reads and writes counted: of one core while the others
    idle, and of all together."""
    import numpy as np

    def copier() -> tuple[Callable[[], None], int]:
        source = np.ones(mebibytes * 2**17, dtype=np.float64)
        target = np.empty_like(source)
        return lambda: np.copyto(target, source), 2 * source.nbytes

    works = [copier() for _ in range(cores)]
    alone = max(together([works[0][0]], seconds / 3) for _ in range(3))
    everyone = max(together([work for work, _ in works], seconds / 3) for _ in range(3))
    return works[0][1] * alone, works[0][1] * everyone * cores


def shared_memory_rate(cores: int, seconds: float) -> float:
    """Bytes per second that each core writes into memory that others read, or reads of theirs: the mean of
    both."""
    import numpy as np

    shared = [np.frombuffer(mmap.mmap(-1, MESSAGE_BYTES), dtype=np.uint8) for _ in range(cores)]
    own = [np.ones((2, MESSAGE_BYTES), dtype=np.uint8) for _ in range(cores)]

    def worker(place: int) -> Callable[[], None]:
        def exchange() -> None:
            np.copyto(shared[place], own[place][0])
            np.copyto(own[place][1], shared[place - 1])

        return exchange

    works = [worker(place) for place in range(cores)]
    return 2 * MESSAGE_BYTES * max(together(works, seconds / 3) for _ in range(3))


def loopback_rate(cores: int, seconds: float) -> float:
    """Bytes per second that each of `cores` sends to the next over a socket of the loopback while it gets as
    many from the one before and adds them to its own, as a ring that sums does."""
    import numpy as np

    cores = max(cores, 2)
    with ExitStack() as stack:
        pairs = [_connected(stack) for _ in range(cores)]
        values = [np.ones(RING_BYTES // 4, dtype=np.float32) for _ in range(cores)]
        arrived = [np.empty_like(one) for one in values]
        # A round is over when both of its halves are: sending goes on in a thread of its own, as in gloo.
        barrier = threading.Barrier(2 * cores)
        rounds = max(4, int(seconds * 600))
        spent = [0.0] * cores

        def send(place: int) -> None:
            for _ in range(rounds):
                barrier.wait()
                pairs[place][0].sendall(values[place].data)

        def receive(place: int) -> None:
            begin = 0.0
            for number in range(rounds):
                barrier.wait()
                if number == 1:
                    begin = perf_counter()
                _fill(pairs[place - 1][1], arrived[place])
                np.add(values[place], arrived[place], out=values[place])
                values[place] *= 0.5
            spent[place] = perf_counter() - begin

        threads = [
            threading.Thread(target=work, args=(place,)) for place in range(cores) for work in (send, receive)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return RING_BYTES * (rounds - 1) / max(max(spent), 1e-9)


def loopback_latency(rounds: int = 200) -> float:
    """Seconds of a small message one way."""
    with ExitStack() as stack:
        near, far = _connected(stack)

        def answer() -> None:
            for _ in range(rounds):
                far.sendall(far.recv(_NOTE_BYTES))

        thread = threading.Thread(target=answer)
        thread.start()
        begin = perf_counter()
        for _ in range(rounds):
            near.sendall(bytes(_NOTE_BYTES))
            near.recv(_NOTE_BYTES)
        spent = perf_counter() - begin
        thread.join()
    return spent / (2 * rounds)


def _connected(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
    for one in (near, far):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def _fill(source: socket.socket, target: Any) -> None:
    view, at = memoryview(target).cast("B"), 0
    while at < len(view):
        at += source.recv_into(view[at:])
