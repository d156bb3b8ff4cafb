"""`NodeReduce`: sums inside a node, of parts of `table_row` and `grid` tables, before they leave it.

Every worker of a node has parts for the samples of all ranks. Each gets the others' parts for the ranks to
which it relays, those of its own number in their nodes, and adds them in the order of workers. What then goes
to other nodes (`output_dist.py`) is one row of sums for a sample instead of one from each worker. Gradients
come back the same way. Inside the node float32 travels.

`local_shards.py` makes one and calls it on the way out and back. It owns the two all-to-alls of the node.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll
from megalith.comm.context import CommContext
from megalith.comm.process_group import subgroup
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.runtime.pooled_columns import ColumnGather, ColumnSplit
from megalith.sharding.wire_format import FLOAT_BYTES


class NodeReduce:
    """The part of one worker; there is one wherever the worker's node adds anything up."""

    def __init__(self, layout: ExchangeLayout, rank: int, comm: CommContext | None) -> None:
        """`comm` is that of the node; None where the node is this worker alone."""
        node = layout.node_of(rank)
        workers = layout.node_workers(node)
        self._local_rank = workers.index(rank)
        self._gather = ColumnGather(layout.nodes[node].levels)
        self._splits = [
            ColumnSplit(sorted(layout.workers[worker].node_columns, key=lambda columns: columns.column))
            for worker in workers
        ]
        self._widths = [layout.workers[worker].node_width for worker in workers]
        # Forward passes may follow each other, and so may backward passes.
        self._vectors = None if comm is None else comm.all_to_all("vectors in the node", depth=2)
        self._gradients = None if comm is None else comm.all_to_all("gradients in the node", depth=2)
        ranks = range(layout.world_size)
        self._relayed_ranks = [[r for r in ranks if layout.relay(node, r) == worker] for worker in workers]

    @classmethod
    def of(cls, layout: ExchangeLayout, rank: int, comm: CommContext | None) -> NodeReduce | None:
        """Sums inside this worker's node, where it adds anything up; all workers make as many groups."""
        if not any(node.width for node in layout.nodes):
            return None
        node = layout.node_of(rank)
        members = None if comm is None else subgroup(comm.group, layout.node_workers(node))
        if not layout.nodes[node].width:
            return None
        inside = None if comm is None or members is None else CommContext.over(members, comm.traffic)
        return cls(layout, rank, inside)

    def reduce(self, parts: Tensor, batches: Sequence[int]) -> Tensor:
        """[samples of all ranks, columns of this worker] to [samples it relays, columns of the node]."""
        blocks = parts.split(list(batches))
        num_samples = self._num_samples(batches)[self._local_rank]
        if self._vectors is None:
            return self._gather({0: parts}, num_samples)
        sent = [torch.cat([blocks[rank] for rank in ranks]) for ranks in self._relayed_ranks]
        sizes = [FLOAT_BYTES * num_samples * width for width in self._widths]
        arrived = _exchange(self._vectors, sent, sizes)
        arrived[self._local_rank] = sent[self._local_rank]
        chunks = {
            worker: chunk.view(num_samples, width)
            for worker, (chunk, width) in enumerate(zip(arrived, self._widths, strict=True))
        }
        return self._gather(chunks, num_samples)

    def reduce_backward(self, gradient: Tensor, batches: Sequence[int]) -> Tensor:
        """Gradients of the sums to those of the parts: the two shapes of `reduce`, the other way round."""
        if self._gradients is None:
            return self._splits[0](gradient)
        width = self._widths[self._local_rank]
        sent = [split(gradient) for split in self._splits]
        sizes = [FLOAT_BYTES * samples * width for samples in self._num_samples(batches)]
        arrived = _exchange(self._gradients, sent, sizes)
        arrived[self._local_rank] = sent[self._local_rank].view(-1)
        by_rank: dict[int, Tensor] = {}
        for ranks, rows in zip(self._relayed_ranks, arrived, strict=True):
            counts = [batches[rank] for rank in ranks]
            by_rank |= zip(ranks, rows.view(sum(counts), width).split(counts), strict=True)
        return torch.cat([by_rank[rank] for rank in range(len(batches))])

    def _num_samples(self, batches: Sequence[int]) -> list[int]:
        """How many samples each worker of the node relays."""
        return [sum(batches[rank] for rank in ranks) for ranks in self._relayed_ranks]


def _exchange(all_to_all: AllToAll, sent: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """What each worker of the node sent, flat; `sizes` of it in bytes."""
    for buffer, rows in zip(all_to_all.buffers([rows.nbytes for rows in sent]), sent, strict=True):
        if len(buffer):
            buffer.view(torch.float32).copy_(rows.reshape(-1))
    return [part.view(torch.float32) for part in all_to_all.wait(all_to_all.start(sizes))]
