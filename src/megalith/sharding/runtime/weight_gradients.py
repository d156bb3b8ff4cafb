"""Gradients of sample weights: from the workers that looked ids up back to the ranks that sent them.

Each worker has, for every id that it looked up, the product of its part of the row and its part of the
bag's gradient. They go back as the ids came, stream by stream, and the sample's rank adds them up at the
ids' places, in the order of workers. Only the streams that sums and means read travel: the largest of a bag
and sequences take no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.sharding.runtime.exchange import Received
from megalith.sharding.runtime.layout import ExchangeLayout, Stream, WorkerLayout
from megalith.sharding.runtime.mail import Mail, Posted
from megalith.sharding.runtime.places import Found, StreamPlaces, rank_edges
from megalith.sharding.runtime.routing import Bags

_BYTES = 4


class Returning(NamedTuple):
    """Gradients on their way."""

    posted: Posted | None
    own: list[Tensor]
    """Of this rank's ids that it looked up itself, stream by stream."""
    found: Found


class WeightGradients:
    """`make_mail` is called when weights want a gradient for the first time: all ranks do so together."""

    def __init__(self, layout: ExchangeLayout, rank: int, make_mail: Callable[[], Mail | None]) -> None:
        self._rank, self._make_mail = rank, make_mail
        self._mail: Mail | None = None
        self._made = False
        self._streams = [_weighted(worker) for worker in layout.workers]
        own = layout.workers[rank]
        self._numbers = [own.streams.index(stream) for stream in self._streams[rank]]
        self._places = StreamPlaces((s for some in self._streams for s in some), len(layout.features))

    def start(self, received: Received, gradients: Tensor) -> Returning:
        """Sends each rank the gradients of the weights that came from it; `gradients` of all that came."""
        if not self._made:
            self._mail, self._made = self._make_mail(), True
        # A stream's ids lie rank by rank.
        edges = rank_edges(received, self._numbers)
        parts = [
            [gradients[one[rank] : one[rank + 1]] for one in edges] for rank in range(len(received.batches))
        ]
        found = self._places(received.own)
        posted = None
        if self._mail is not None:
            sizes = [_BYTES * sum(map(len, some)) for some in parts]
            for rank, (place, some) in enumerate(zip(self._mail.open(sizes), parts, strict=True)):
                if rank != self._rank and sizes[rank]:
                    torch.cat(some, out=place.view(torch.float32))
            arriving = [_BYTES * sum(map(found.count, streams)) for streams in self._streams]
            posted = self._mail.post(arriving)
        return Returning(posted, parts[self._rank], found)

    def finish(self, returning: Returning, bags: Bags, replicated: Tensor | None) -> Tensor:
        """Waits, and adds up the gradient of each of this rank's weights."""
        total = torch.zeros(len(bags.values))
        arrived: list[Tensor] = []
        if self._mail is not None and returning.posted is not None:
            arrived = self._mail.collect(returning.posted)
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
                    here.index_add_(0, found.places[stream], part)
        return total if replicated is None else total.add_(replicated)


def _weighted(worker: WorkerLayout) -> tuple[Stream, ...]:
    """The streams of a worker that sums and means read."""
    read = {
        stream
        for holding in worker.pooled_holdings
        if holding.table.pooling != "max"
        for stream in holding.streams
    }
    return tuple(stream for stream in worker.streams if stream in read)
