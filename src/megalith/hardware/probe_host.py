"""What processes of one machine get while they share it: memory, shared memory, sockets of the loopback.

As many processes as there are cores work at a time, as ranks on one host do in a step. Each figure is the
best of several, since whatever else runs only slows them down.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
from contextlib import ExitStack
from time import perf_counter
from typing import Any

MESSAGE_BYTES = 2**22
"""Of what a worker sends the others in a step, the order of magnitude."""
RING_BYTES = 2**20
"""Pieces in which gloo sends a vector around a ring."""
COPY_BYTES = 2**26
"""More than caches hold."""
CACHED_BYTES = 2**18
"""What the cache of a core holds twice."""
_SIGNAL_BYTES = 64
_TURNS = 3
_PAIRS = 3
"""Of measurements alone and together, in turns: a virtual machine's cores move between those of its host."""


def memory_rates(cores: int, seconds: float) -> tuple[float, float]:
    """Bytes per second of copies that no cache holds, reads and writes counted: of one core while the others
    idle, and of all together.

    What a core gains while the others idle is the mean of what copies gain that no cache holds and of what
    those gain that one does: work on rows is some of both.
    """
    gains, rates = [], []
    for _ in range(_PAIRS):
        for num_bytes in (COPY_BYTES, CACHED_BYTES):
            alone, everyone = (
                _rounds_per_second(_Copies, [(num_bytes,)] * count, seconds / _PAIRS) for count in (1, cores)
            )
            gains.append(alone / everyone)
            if num_bytes == COPY_BYTES:
                rates.append(2 * COPY_BYTES * cores * everyone)
    gain = min(max(sum(gains) / len(gains), 1.0), float(cores))
    rate = max(rates)
    return rate / cores * gain, rate


def shared_memory_rate(cores: int, seconds: float) -> float:
    """Bytes per second that each core writes into memory that others read, or reads of theirs: the mean of
    both."""
    context = multiprocessing.get_context("spawn")
    buffers = [context.RawArray("B", MESSAGE_BYTES) for _ in range(cores)]
    given = [(buffers[rank], buffers[rank - 1]) for rank in range(cores)]
    return 2 * MESSAGE_BYTES * _rounds_per_second(_Messages, given, seconds)


def loopback_rate(cores: int, seconds: float) -> float:
    """Bytes per second that each of `cores` processes, at least two, sends to the next over a socket while it
    gets as many from the one before and adds them to its own, as a ring that sums does."""
    cores = max(cores, 2)
    with ExitStack() as stack:
        pairs = [_connected(stack) for _ in range(cores)]
        given = [(pairs[rank][0], pairs[rank - 1][1]) for rank in range(cores)]
        return RING_BYTES * _rounds_per_second(_Ring, given, seconds)


def loopback_latency(rounds: int = 200) -> float:
    """Seconds of a small message one way."""
    with ExitStack() as stack:
        near, far = _connected(stack)

        def answer() -> None:
            for _ in range(rounds):
                far.sendall(far.recv(_SIGNAL_BYTES))

        thread = threading.Thread(target=answer)
        thread.start()
        begin = perf_counter()
        for _ in range(rounds):
            near.sendall(bytes(_SIGNAL_BYTES))
            near.recv(_SIGNAL_BYTES)
        spent = perf_counter() - begin
        thread.join()
    return spent / (2 * rounds)


class _Copies:
    usual_seconds = 1e-2

    def __init__(self, num_bytes: int) -> None:
        import numpy as np

        self._source = np.ones(num_bytes, dtype=np.uint8)
        self._target = np.empty_like(self._source)
        self._times = COPY_BYTES // num_bytes

    def __call__(self) -> None:
        for _ in range(self._times):
            self._target[:] = self._source


class _Messages:
    usual_seconds = 1e-3

    def __init__(self, mine: Any, theirs: Any) -> None:
        import numpy as np

        self._mine, self._theirs = (np.frombuffer(buffer, dtype=np.uint8) for buffer in (mine, theirs))
        self._sent, self._received = np.ones((2, MESSAGE_BYTES), dtype=np.uint8)

    def __call__(self) -> None:
        self._mine[:] = self._sent
        self._received[:] = self._theirs


class _Ring:
    usual_seconds = 5e-4

    def __init__(self, following: socket.socket, preceding: socket.socket) -> None:
        import numpy as np

        self._following, self._preceding = following, preceding
        self._values = np.ones(RING_BYTES // 4, dtype=np.float32)
        self._arrived = np.empty_like(self._values)

    def __call__(self) -> None:
        # Sending goes on in a thread of its own, as in gloo: all send before any receives.
        sender = threading.Thread(target=self._following.sendall, args=(self._values.data,))
        sender.start()
        view, at = self._arrived.data.cast("B"), 0
        while at < len(view):
            received = self._preceding.recv_into(view[at:])
            if not received:
                return
            at += received
        sender.join()
        self._values += self._arrived
        self._values *= 0.5


def _rounds_per_second(kind: Any, given: list[tuple[Any, ...]], seconds: float) -> float:
    """Mean over processes of the rounds of each, all at work at the same time; the best of some turns."""
    context = multiprocessing.get_context("spawn")
    barrier, spent = context.Barrier(len(given)), context.Queue()
    # Processes wait for each other's messages, so all make as many rounds.
    rounds = max(2, int(seconds / _TURNS / kind.usual_seconds))
    processes = [
        context.Process(target=_work, args=(kind, arguments, rounds, barrier, spent), daemon=True)
        for arguments in given
    ]
    for process in processes:
        process.start()
    rates = [spent.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    return max(float(sum(turn)) / len(turn) for turn in zip(*rates, strict=True))


def _work(kind: Any, given: tuple[Any, ...], rounds: int, barrier: Any, spent: Any) -> None:
    """Rounds per second, turn by turn; the first is not counted."""
    work, rates = kind(*given), []
    for _ in range(_TURNS + 1):
        barrier.wait()
        begin = perf_counter()
        for _ in range(rounds):
            work()
        rates.append(rounds / max(perf_counter() - begin, 1e-9))
    spent.put(rates[1:])


def _connected(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far
