"""What gloo's all-reduce takes, by its own algorithm (gloo/allreduce.cc, transport/tcp/pair.cc).

The buffer is cut into segments of at most a mebibyte, at least two a rank. A ring reduces and then gathers
them, two segments at a time under way: the third is asked for when the first has come. Asking is a message
of its own, a sender waits for it, and it queues behind what the asking rank is sending the same way.
"""

from __future__ import annotations

from megalith.hardware.cluster import Link

_LARGEST_SEGMENT_BYTES = 1 << 20
_UNDER_WAY = 2
_SAME_MOMENT = 1e-9


def gloo_all_reduce_seconds(buffer_bytes: float, ranks: int, link: Link) -> float:
    """From the moment when all ranks call it until they have the sum; ranks stand around one ring of links.

    >>> link = Link("test", bytes_per_second=1e6, latency_seconds=0.5)
    >>> gloo_all_reduce_seconds(1e6, 2, link)  # 4 latencies, not 2, and the bytes
    3.0
    """
    segments = max(-(-int(buffer_bytes) // _LARGEST_SEGMENT_BYTES), _UNDER_WAY * ranks)
    a_rank = -(-segments // ranks)
    transmit = buffer_bytes / (a_rank * ranks) / link.bytes_per_second
    count = a_rank * (ranks - 1)
    now = 0.0
    for _ in ("reduce", "gather"):
        now = _phase_end(now, count, transmit, link.latency_seconds, shared=ranks == _UNDER_WAY)
    return now


def _phase_end(start: float, count: int, transmit: float, latency: float, *, shared: bool) -> float:
    """All ranks do the same at the same time, so that one of them stands for all. `shared`: with two ranks,
    what a rank sends goes to the one it receives from, requests and segments in one stream.

    In that stream a segment is followed by the request for the next but one; who receives both sends the
    segment that was asked for from the thread that reads, before the thread that reduces asks on."""
    handed_over: list[float] = []
    sent: list[float] = []
    arrived: list[float] = []
    for index in range(count):
        asked = start if index < _UNDER_WAY else arrived[index - _UNDER_WAY]
        ahead = [end for moment, end in zip(handed_over, sent, strict=True) if moment <= asked + _SAME_MOMENT]
        leaves = max([asked, *ahead]) if shared else asked
        handed_over.append(leaves + latency)
        sent.append(max([leaves + latency, *sent[-1:]]) + transmit)
        arrived.append(sent[-1] + latency)
    return arrived[-1]
