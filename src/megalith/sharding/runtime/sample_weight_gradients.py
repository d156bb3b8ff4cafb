"""Gradients of sample weights: from the workers that looked ids up back to the ranks that sent them.

Each worker has, for every id that it looked up, the product of its part of the row and its part of the
bag's gradient. They go back as the ids came, stream by stream, and the sample's rank adds them up at the
ids' places, in the order of workers. Only the streams that sums and means read travel: the largest of a bag
and sequences take no weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll, PendingExchange
from megalith.comm.context import CommContext
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import Stream, WorkerLayout
from megalith.sharding.runtime.input_dist.id_positions import IdPositionFinder, IdPositions, rank_edges
from megalith.sharding.runtime.input_dist.input_dist import Received
from megalith.sharding.runtime.input_dist.routing import Bags
from megalith.sharding.wire_format import WEIGHT_BYTES


class PendingWeightGradients(NamedTuple):
    """Gradients on their way."""

    exchange: PendingExchange | None
    own: list[Tensor]
    """Of this rank's ids that it looked up itself, stream by stream."""
    found: IdPositions


class SampleWeightGradients:
    """The exchange is made when weights want a gradient for the first time: all ranks do so together."""

    def __init__(self, layout: ExchangeLayout, rank: int, comm: CommContext | None) -> None:
        self._rank, self._comm = rank, comm
        self._all_to_all: AllToAll | None = None
        self._streams = [_weighted(worker) for worker in layout.workers]
        own = layout.workers[rank]
        self._numbers = [own.streams.index(stream) for stream in self._streams[rank]]
        self._positions = IdPositionFinder((s for some in self._streams for s in some), len(layout.features))

    def start(self, received: Received, gradients: Tensor) -> PendingWeightGradients:
        """Sends each rank the gradients of the weights that came from it; `gradients` of all that came."""
        if self._all_to_all is None and self._comm is not None:
            self._all_to_all = self._comm.all_to_all("gradients of sample weights")
        # A stream's ids lie rank by rank.
        edges = rank_edges(received, self._numbers)
        parts = [
            [gradients[one[rank] : one[rank + 1]] for one in edges] for rank in range(len(received.batches))
        ]
        found = self._positions(received.own)
        exchange = None
        if self._all_to_all is not None:
            sizes = [WEIGHT_BYTES * sum(map(len, some)) for some in parts]
            for rank, (buffer, some) in enumerate(zip(self._all_to_all.buffers(sizes), parts, strict=True)):
                if rank != self._rank and sizes[rank]:
                    torch.cat(some, out=buffer.view(torch.float32))
            arriving = [WEIGHT_BYTES * sum(map(found.count, streams)) for streams in self._streams]
            exchange = self._all_to_all.start(arriving)
        return PendingWeightGradients(exchange, parts[self._rank], found)

    def finish(self, returning: PendingWeightGradients, bags: Bags, replicated: Tensor | None) -> Tensor:
        """Waits, and adds up the gradient of each of this rank's weights."""
        total = torch.zeros(len(bags.values))
        arrived: list[Tensor] = []
        if self._all_to_all is not None and returning.exchange is not None:
            arrived = self._all_to_all.wait(returning.exchange)
        found = returning.found
        for worker, streams in enumerate(self._streams):
            if worker == self._rank:
                parts = tuple(returning.own)
            else:
                parts = arrived[worker].view(torch.float32).split([found.count(one) for one in streams])
            for stream, part in zip(streams, parts, strict=True):
                start = found.starts[stream.feature]
                here = total[start : start + found.sizes[stream.feature]]
                if stream.rows is None:
                    here += part
                else:
                    here.index_add_(0, found.positions[stream], part)
        return total if replicated is None else total.add_(replicated)


def _weighted(worker: WorkerLayout) -> tuple[Stream, ...]:
    """The streams of a worker that sums and means read."""
    read = {
        stream for local in worker.pooled_shards if local.table.pooling != "max" for stream in local.streams
    }
    return tuple(stream for stream in worker.streams if stream in read)
