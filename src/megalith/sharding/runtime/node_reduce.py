"""Sums inside a node: parts of `table_row` and `grid` tables are added up before they leave it.

Every worker of a node has parts for the samples of all ranks. Each gets the others' parts for the ranks to
which it relays, those of its own position in their nodes, and adds them in the order of workers. What then
goes to other nodes (`output_dist.py`) is one row of sums for a sample instead of one from each worker.
Gradients come back the same way. Inside the node FP32 travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll
from megalith.comm.context import CommContext
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.runtime.pooled_columns import ColumnGather, ColumnSplit


class NodeReduce:
    """The part of one worker; there is one wherever the worker's node adds anything up."""

    def __init__(self, layout: ExchangeLayout, rank: int, comm: CommContext | None) -> None:
        node = layout.node_of(rank)
        workers = layout.node_workers(node)
        self._place = workers.index(rank)
        self._assemble = ColumnGather(layout.nodes[node].levels)
        self._takings = [
            ColumnSplit(sorted(layout.workers[worker].node_columns, key=lambda one: one.column))
            for worker in workers
        ]
        self._widths = [layout.workers[worker].node_width for worker in workers]
        # Forward passes may follow each other, and so may backward passes.
        self._vectors = None if comm is None else comm.all_to_all("vectors in the node", depth=2)
        self._gradients = None if comm is None else comm.all_to_all("gradients in the node", depth=2)
        ranks = range(layout.world_size)
        self._relayed_ranks = [[r for r in ranks if layout.relay(node, r) == worker] for worker in workers]

    def add_up(self, parts: Tensor, batches: Sequence[int]) -> Tensor:
        """[samples of all ranks, columns of this worker] to [samples it relays, columns of the node]."""
        blocks = parts.split(list(batches))
        mine = self._samples(batches)[self._place]
        if self._vectors is None:
            return self._assemble({0: parts}, mine)
        sent = [torch.cat([blocks[rank] for rank in ranks]) for ranks in self._relayed_ranks]
        sizes = [4 * mine * width for width in self._widths]
        arrived = _exchange(self._vectors, sent, sizes)
        arrived[self._place] = sent[self._place]
        chunks = {
            place: chunk.view(mine, width)
            for place, (chunk, width) in enumerate(zip(arrived, self._widths, strict=True))
        }
        return self._assemble(chunks, mine)

    def spread(self, gradient: Tensor, batches: Sequence[int]) -> Tensor:
        """Gradients of the sums back to the parts: the same two shapes, the other way round."""
        if self._gradients is None:
            return self._takings[0](gradient)
        width = self._widths[self._place]
        sent = [take(gradient) for take in self._takings]
        sizes = [4 * samples * width for samples in self._samples(batches)]
        arrived = _exchange(self._gradients, sent, sizes)
        arrived[self._place] = sent[self._place].view(-1)
        by_rank: dict[int, Tensor] = {}
        for ranks, rows in zip(self._relayed_ranks, arrived, strict=True):
            counts = [batches[rank] for rank in ranks]
            by_rank |= zip(ranks, rows.view(sum(counts), width).split(counts), strict=True)
        return torch.cat([by_rank[rank] for rank in range(len(batches))])

    def _samples(self, batches: Sequence[int]) -> list[int]:
        """How many samples each worker of the node relays."""
        return [sum(batches[rank] for rank in ranks) for ranks in self._relayed_ranks]


def _exchange(all_to_all: AllToAll, sent: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """What each worker of the node sent, flat; `sizes` of it in bytes."""
    for buffer, rows in zip(all_to_all.buffers([rows.nbytes for rows in sent]), sent, strict=True):
        if len(buffer):
            buffer.view(torch.float32).copy_(rows.reshape(-1))
    return [part.view(torch.float32) for part in all_to_all.wait(all_to_all.start(sizes))]
