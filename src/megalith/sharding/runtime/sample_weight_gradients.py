"""`SampleWeightGradients`: from the workers that looked ids up back to the ranks that sent them.

The lookup (`lookup.py`) starts it before a worker updates its rows and finishes it afterwards, only where
weights want a gradient. It owns the all-to-all of these gradients.

Each worker has, for every id that it looked up, the product of its part of the row and its part of the
bag's gradient. They go back as the ids came, stream by stream, and the sample's rank adds them up at the
ids' positions, in the order of workers. Only the streams that sums and means read travel: max pooling and
sequences take no weight.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll, PendingExchange
from megalith.comm.context import CommContext
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import IdStream, WorkerLayout
from megalith.sharding.runtime.input_dist.id_positions import IdPositionFinder, IdPositions, rank_edges
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds, ReceivedIds
from megalith.sharding.wire_format import WEIGHT_BYTES


class PendingWeightGradients(NamedTuple):
    """Gradients of sample weights on their way."""

    exchange: PendingExchange | None
    own: list[Tensor]
    """Of this rank's ids that it looked up itself, stream by stream."""
    positions: IdPositions


class SampleWeightGradients:
    """The exchange of the gradients, as one rank takes part in it.

    Its all-to-all is made when weights want a gradient for the first time: all ranks do so together.
    """

    def __init__(self, layout: ExchangeLayout, rank: int, comm: CommContext | None) -> None:
        self._rank, self._comm = rank, comm
        self._all_to_all: AllToAll | None = None
        self._streams = [_weighted(worker) for worker in layout.workers]
        own = layout.workers[rank]
        self._numbers = [own.streams.index(stream) for stream in self._streams[rank]]
        self._find_positions = IdPositionFinder(
            itertools.chain.from_iterable(self._streams), len(layout.features)
        )

    def start(self, received: ReceivedIds, gradients: Tensor) -> PendingWeightGradients:
        """Sends each rank the gradients of the weights that came from it; `gradients` of all that came."""
        if self._all_to_all is None and self._comm is not None:
            self._all_to_all = self._comm.all_to_all("gradients of sample weights")
        # A stream's ids lie rank by rank.
        edges = rank_edges(received, self._numbers)
        parts = [
            [gradients[edge[rank] : edge[rank + 1]] for edge in edges]
            for rank in range(len(received.batches))
        ]
        positions = self._find_positions(received.own)
        exchange = None
        if self._all_to_all is not None:
            sizes = [WEIGHT_BYTES * sum(map(len, to_rank)) for to_rank in parts]
            for rank, (buffer, to_rank) in enumerate(
                zip(self._all_to_all.buffers(sizes), parts, strict=True)
            ):
                if rank != self._rank and sizes[rank]:
                    torch.cat(to_rank, out=buffer.view(torch.float32))
            arriving = [WEIGHT_BYTES * sum(map(positions.count, streams)) for streams in self._streams]
            exchange = self._all_to_all.start(arriving)
        return PendingWeightGradients(exchange, parts[self._rank], positions)

    def finish(self, pending: PendingWeightGradients, ids: JaggedIds, replicated: Tensor | None) -> Tensor:
        """Waits, and adds up the gradient of each of this rank's weights; `replicated` by copies here."""
        total = torch.zeros(len(ids.values))
        arrived: list[Tensor] = []
        if self._all_to_all is not None and pending.exchange is not None:
            arrived = self._all_to_all.wait(pending.exchange)
        positions = pending.positions
        for worker, streams in enumerate(self._streams):
            if worker == self._rank:
                parts = tuple(pending.own)
            else:
                counts = [positions.count(stream) for stream in streams]
                parts = arrived[worker].view(torch.float32).split(counts)
            for stream, part in zip(streams, parts, strict=True):
                start = positions.starts[stream.feature]
                of_feature = total[start : start + positions.sizes[stream.feature]]
                if stream.rows is None:
                    of_feature += part
                else:
                    of_feature.index_add_(0, positions.positions[stream], part)
        return total if replicated is None else total.add_(replicated)


def _weighted(worker: WorkerLayout) -> tuple[IdStream, ...]:
    """The streams of a worker that sums and means read."""
    read = {
        stream for local in worker.pooled_shards if local.table.pooling != "max" for stream in local.streams
    }
    return tuple(stream for stream in worker.streams if stream in read)
