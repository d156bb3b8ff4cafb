"""A ring over links that differ.

What a rank sends in a step has come over the edge before it in the last step. So a ring takes as long as the
longest chain of messages that wait for each other, edge after edge, or as long as its slowest edge needs for
all of its messages, whichever is more. Collectives that follow each other go on where the last one ended:
chains then run round and round, and the mean of all edges counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from megalith.hardware.cluster import Level

_PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def uneven_ring_seconds(
    edges: Sequence[Level], kind: str, message_bytes: float, *, repeated: bool = False
) -> float:
    """Seconds of a collective over the ring of these edges; `repeated`: one of many in a row."""
    ranks = len(edges)
    steps = _PASSES[kind] * (ranks - 1)
    sent = [message_bytes / ranks / _rate(edge) for edge in edges]
    hops = [seconds + edge.link.latency_seconds for seconds, edge in zip(sent, edges, strict=True)]
    if repeated:
        return max(steps * sum(hops) / ranks, steps * max(sent))
    chain = max(sum(hops[(start + step) % ranks] for step in range(steps)) for start in range(ranks))
    queued = max(
        steps * seconds + edge.link.latency_seconds for seconds, edge in zip(sent, edges, strict=True)
    )
    return max(chain, queued)


def _rate(edge: Level) -> float:
    return edge.link.bytes_per_second / edge.oversubscription
