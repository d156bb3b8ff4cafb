"""Bytes of vectors between every two workers in a step of a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import Codec
from megalith.sharding.wire_format import FLOAT_BYTES, row_bytes

Floats = NDArray[np.float64]
SequenceVectors = Sequence[list[tuple[float, int]]]
"""Of every worker: vectors of sequences, how many and of which width."""


def vector_bytes(layout: ExchangeLayout, codec: Codec, local: float, sequences: SequenceVectors) -> Floats:
    """[workers, ranks]: bytes of vectors that a worker sends to a rank of `local` samples."""
    size = layout.world_size
    direct = np.array([row_bytes(codec, worker.vector_widths) for worker in layout.workers])
    sent = np.repeat(direct[:, None] * local, size, axis=1)
    more = [sum(ids * row_bytes(codec, [width]) for ids, width in vectors) for vectors in sequences]
    sent += np.array(more, dtype=np.float64)[:, None] / size
    for node, summed in enumerate(layout.nodes):
        if summed.width:
            row = row_bytes(codec, summed.vector_widths)
            for rank in range(size):
                sent[layout.relay(node, rank), rank] += row * local
    return sent


def in_node_bytes(layout: ExchangeLayout, local: float) -> Floats:
    """[workers, workers]: FP32 bytes that go to the worker of the node which adds them up."""
    size = layout.world_size
    sent = np.zeros((size, size))
    for node, summed in enumerate(layout.nodes):
        if summed.width:
            relayed = np.bincount([layout.relay(node, rank) for rank in range(size)], minlength=size)
            for worker in layout.node_workers(node):
                sent[worker] += FLOAT_BYTES * layout.workers[worker].node_width * relayed * local
    return sent
