"""Sums inside a node: parts of `table_row` and `grid` tables are added up before they leave it.

Every worker of a node has parts for the samples of all ranks. Each gets the others' parts for the ranks that
it speaks to, those of its own place in their nodes, and adds them in the order of workers; what then goes to
other nodes (`pooled.py`) is one row of sums for a sample instead of one from each worker. Gradients come
back the same way. Inside the node FP32 travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.sharding.runtime.columns import Assembly, Taking
from megalith.sharding.runtime.layout import ExchangeLayout
from megalith.sharding.runtime.traffic import Traffic


class NodeSums:
    """The part of one worker; there is one wherever the worker's node adds anything up."""

    def __init__(
        self, layout: ExchangeLayout, rank: int, group: dist.ProcessGroup | None, traffic: Traffic
    ) -> None:
        node = layout.node_of(rank)
        workers = layout.node_workers(node)
        self._group, self._traffic = group, traffic
        self._place = workers.index(rank)
        self._assemble = Assembly(layout.nodes[node].levels)
        self._takings = [
            Taking(sorted(layout.workers[worker].node_runs, key=lambda run: run.column)) for worker in workers
        ]
        self._widths = [layout.workers[worker].node_width for worker in workers]
        ranks = range(layout.world_size)
        self._spoken_to = [[r for r in ranks if layout.speaker(node, r) == worker] for worker in workers]

    def add_up(self, parts: Tensor, batches: Sequence[int]) -> Tensor:
        """[samples of all ranks, columns of this worker] to [samples it speaks for, columns of the node]."""
        blocks = parts.split(list(batches))
        mine = self._samples(batches)[self._place]
        if self._group is None:
            return self._assemble({0: parts}, mine)
        width = self._widths[self._place]
        sent = torch.cat([blocks[rank] for ranks in self._spoken_to for rank in ranks]).view(-1)
        sent_sizes = [samples * width for samples in self._samples(batches)]
        sizes = [mine * width for width in self._widths]
        received = torch.empty(sum(sizes), device=parts.device)
        own = sent_sizes[self._place] * sent.element_size()
        work = self._traffic.all_to_all(
            "vectors in the node", received, sent, sizes, sent_sizes, self._group, kept_bytes=own
        )
        work.wait()
        chunks = {
            place: chunk.view(mine, width)
            for place, (chunk, width) in enumerate(zip(received.split(sizes), self._widths, strict=True))
        }
        return self._assemble(chunks, mine)

    def spread(self, gradient: Tensor, batches: Sequence[int]) -> Tensor:
        """Gradients of the sums back to the parts: the same two shapes, the other way round."""
        mine = self._samples(batches)[self._place]
        if self._group is None:
            return self._takings[0](gradient)
        width = self._widths[self._place]
        sent = torch.cat([take(gradient).reshape(-1) for take in self._takings])
        sent_sizes = [mine * other for other in self._widths]
        sizes = [samples * width for samples in self._samples(batches)]
        received = torch.empty(sum(sizes), device=gradient.device)
        own = sent_sizes[self._place] * sent.element_size()
        work = self._traffic.all_to_all(
            "gradients in the node", received, sent, sizes, sent_sizes, self._group, kept_bytes=own
        )
        work.wait()
        ordered = [rank for ranks in self._spoken_to for rank in ranks]
        blocks = received.view(sum(batches), width).split([batches[rank] for rank in ordered])
        by_rank = dict(zip(ordered, blocks, strict=True))
        return torch.cat([by_rank[rank] for rank in range(len(batches))])

    def _samples(self, batches: Sequence[int]) -> list[int]:
        """How many samples each worker of the node speaks for."""
        return [sum(batches[rank] for rank in ranks) for ranks in self._spoken_to]
