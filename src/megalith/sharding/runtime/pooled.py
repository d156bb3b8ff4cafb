"""The exchange of pooled vectors: from the workers that looked them up to the samples' ranks; gradients back.

Each way is one all-to-all. A worker's vectors lie sample by sample, so what a rank gets is a block of whole
rows, and FP32 travels from where the lookup wrote it. The rank adds parts of sums in the order of workers.
What a process keeps for itself never travels. Sums of a node (`hierarchical.py`) travel in the same message,
behind the worker's own columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.sharding.plan import Codec, ExchangeConfig
from megalith.sharding.runtime.codecs import RowCodec, row_codec
from megalith.sharding.runtime.layout import ExchangeLayout, Run
from megalith.sharding.runtime.traffic import Traffic


class Vectors(NamedTuple):
    """Rows that a worker has looked up, or their gradients."""

    direct: Tensor
    """[samples of all ranks, direct columns of this worker]"""
    node: Tensor | None
    """[samples of the ranks it speaks to for its node, columns of the node's sums]"""


class Pending(NamedTuple):
    """A transfer under way; its buffers live here until it is over."""

    work: dist.Work | None
    sent: Tensor
    received: Tensor
    own: Vectors
    """What this process keeps for itself: rows of its own samples."""
    whole: Tensor | None
    """The matrix that received and kept rows form together, where they do."""


class _Block(NamedTuple):
    """Rows that one worker sends to a rank, or gets gradients for: its own columns or its node's."""

    source: int
    codec: RowCodec
    width: int


class VectorExchange:
    def __init__(
        self,
        layout: ExchangeLayout,
        rank: int,
        group: dist.ProcessGroup | None,
        traffic: Traffic,
        config: ExchangeConfig,
    ) -> None:
        self._layout, self._rank, self._group, self._traffic = layout, rank, group, traffic
        self._plain_forward, self._plain_backward = config.forward == "fp32", config.backward == "fp32"
        self.spoken_to = [
            other for other in range(layout.world_size) if layout.speaker(layout.node_of(rank), other) == rank
        ]
        """The ranks that get this node's sums from this worker."""
        self._has_nodes = any(node.width for node in layout.nodes)
        self._forward = _blocks(layout, config.forward)
        self._backward = _blocks(layout, config.backward)

    def start_forward(self, vectors: Vectors, batches: Sequence[int]) -> Pending:
        """Sends each rank its rows."""
        own = self._own(vectors, batches)
        if self._group is None:
            return Pending(None, own.direct, own.direct, own, None)
        sent, sent_sizes = self._pack(vectors, batches)
        batch = batches[self._rank]
        sizes = [self._row_bytes(self._forward, worker, self._rank) * batch for worker in range(len(batches))]
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.device)
        work = self._traffic.all_to_all("vectors", received, sent, sizes, sent_sizes, self._group)
        return Pending(work, sent, received, own, None)

    def finish_forward(self, pending: Pending, batch: int, replicated: Tensor | None) -> Tensor:
        """Waits, and puts this rank's pooled rows together, [batch, output_dim]."""
        layout, rank = self._layout, self._rank
        if pending.work is not None:
            pending.work.wait()
        chunks: dict[int, Tensor] = {rank: pending.own.direct}
        if pending.own.node is not None:
            chunks[layout.world_size + layout.node_of(rank)] = pending.own.node
        if replicated is not None:
            chunks[len(layout.sources) - 1] = replicated
        at = 0
        for worker in range(layout.world_size if self._group is not None else 0):
            for block in self._between(self._forward, worker, rank):
                size = batch * block.codec.row_bytes
                rows = pending.received[at : at + size].view(batch, block.codec.row_bytes)
                chunks[block.source] = block.codec.decode(rows)
                at += size
        return assemble(chunks, layout.levels, batch)

    def start_backward(self, gradient: Tensor, batches: Sequence[int]) -> Pending:
        """Sends each worker the gradients of what it looked up for this rank, [batch, output_dim]."""
        layout, rank, batch = self._layout, self._rank, batches[self._rank]
        node = layout.world_size + layout.node_of(rank)
        own_node = columns_of(gradient, layout.sources[node]) if layout.sources[node] else None
        runs = layout.sources[rank]
        width = layout.workers[rank].direct_width
        if self._group is None:
            return Pending(None, gradient, gradient, Vectors(columns_of(gradient, runs), own_node), None)
        sizes = [
            0 if other == rank else self._row_bytes(self._backward, rank, other) * n
            for other, n in enumerate(batches)
        ]
        sent_sizes = [self._row_bytes(self._backward, worker, rank) * batch for worker in range(len(batches))]
        sent = torch.empty(sum(sent_sizes), dtype=torch.uint8, device=gradient.device)
        at = 0
        for worker in range(len(batches)):
            for block in self._between(self._backward, worker, rank):
                size = batch * block.codec.row_bytes
                place = sent[at : at + size].view(batch, block.codec.row_bytes)
                if self._plain_backward:
                    columns_of(gradient, layout.sources[block.source], place.view(torch.float32))
                else:
                    place.copy_(block.codec.encode(columns_of(gradient, layout.sources[block.source])))
                at += size
        first, total = sum(batches[:rank]), sum(batches)
        whole = None
        if self._plain_backward and not self._has_nodes and rank in (0, len(batches) - 1):
            # Kept rows come first or last, so that all others arrive in one piece just where they belong.
            whole = torch.empty(total, width, device=gradient.device)
            own = columns_of(gradient, runs, whole[first : first + batch])
            others = whole[batch:] if first == 0 else whole[:first]
            received = others.view(-1).view(torch.uint8)
        else:
            own = columns_of(gradient, runs)
            received = torch.empty(sum(sizes), dtype=torch.uint8, device=gradient.device)
        work = self._traffic.all_to_all("gradients", received, sent, sizes, sent_sizes, self._group)
        return Pending(work, sent, received, Vectors(own, own_node), whole)

    def finish_backward(self, pending: Pending, batches: Sequence[int]) -> Vectors:
        """Waits, and returns the gradients of what this worker looked up, over the samples of all ranks."""
        if pending.work is None:
            return pending.own
        pending.work.wait()
        if pending.whole is not None:
            return Vectors(pending.whole, None)
        direct, node = [], []
        at = 0
        for other, batch in enumerate(batches):
            if other == self._rank:
                direct.append(pending.own.direct)
                if pending.own.node is not None:
                    node.append(pending.own.node)
                continue
            for block in self._between(self._backward, self._rank, other):
                size = batch * block.codec.row_bytes
                rows = pending.received[at : at + size].view(batch, block.codec.row_bytes)
                (direct if block.source == self._rank else node).append(block.codec.decode(rows))
                at += size
        # Rows without columns do not travel.
        own = pending.own.direct
        whole = torch.cat(direct) if own.shape[1] else own.new_empty(sum(batches), 0)
        return Vectors(whole, torch.cat(node) if node else None)

    def _own(self, vectors: Vectors, batches: Sequence[int]) -> Vectors:
        rank, batch = self._rank, batches[self._rank]
        first = sum(batches[:rank])
        node = None
        if vectors.node is not None:
            begin = sum(batches[other] for other in self.spoken_to if other < rank)
            node = vectors.node[begin : begin + batch]
        return Vectors(vectors.direct[first : first + batch], node)

    def _pack(self, vectors: Vectors, batches: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Every other rank's rows, rank after rank, and the bytes of each."""
        rank = self._rank
        sizes = [
            0 if other == rank else self._row_bytes(self._forward, rank, other) * n
            for other, n in enumerate(batches)
        ]
        blocks = self._between(self._forward, rank, (rank + 1) % len(batches))
        if not self._has_nodes:
            if not sum(sizes):
                return torch.empty(0, dtype=torch.uint8, device=vectors.direct.device), sizes
            first, last = sum(batches[:rank]), sum(batches[: rank + 1])
            ends = [part for part in (vectors.direct[:first], vectors.direct[last:]) if len(part)]
            encoded = [blocks[0].codec.encode(part).view(-1) for part in ends]
            return encoded[0] if len(encoded) == 1 else torch.cat(encoded), sizes
        direct = dict(enumerate(vectors.direct.split(list(batches))))
        node: dict[int, Tensor] = {}
        if vectors.node is not None:
            rows = vectors.node.split([batches[other] for other in self.spoken_to])
            node = dict(zip(self.spoken_to, rows, strict=True))
        parts = [
            block.codec.encode((direct if block.source == rank else node)[other]).view(-1)
            for other in range(len(batches))
            if other != rank
            for block in self._between(self._forward, rank, other)
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8), sizes

    def _between(self, blocks: dict[int, _Block], worker: int, rank: int) -> list[_Block]:
        """What a worker sends to a rank that is not itself."""
        layout = self._layout
        if worker == rank:
            return []
        node = layout.node_of(worker)
        speaks = layout.world_size + node in blocks and layout.speaker(node, rank) == worker
        sources = [worker, layout.world_size + node] if speaks else [worker]
        return [blocks[source] for source in sources if source in blocks]

    def _row_bytes(self, blocks: dict[int, _Block], worker: int, rank: int) -> int:
        return sum(block.codec.row_bytes for block in self._between(blocks, worker, rank))


def assemble(chunks: dict[int, Tensor], levels: Sequence[Sequence[Run]], batch: int) -> Tensor:
    """Columns of sources side by side, and further levels added to them."""
    if not levels:
        return torch.zeros(batch, 0)
    first = [chunks[run.source][:, run.column : run.column + run.width] for run in levels[0]]
    out = first[0] if len(first) == 1 and first[0].is_contiguous() else torch.cat(first, dim=1)
    for level in levels[1:]:
        for source, column, output, width in level:
            out[:, output : output + width] += chunks[source][:, column : column + width]
    return out


def columns_of(rows: Tensor, runs: Sequence[Run], out: Tensor | None = None) -> Tensor:
    """The columns of a source, out of all columns of the output."""
    if out is None and len(runs) == 1 and runs[0].width == rows.shape[1]:
        return rows
    parts = [rows[:, run.output : run.output + run.width] for run in runs]
    if not parts:
        return rows.new_empty(len(rows), 0) if out is None else out
    return torch.cat(parts, dim=1) if out is None else torch.cat(parts, dim=1, out=out)


def _blocks(layout: ExchangeLayout, codec: Codec) -> dict[int, _Block]:
    """What can travel: the columns of each source that has any."""
    widths = [worker.vector_widths for worker in layout.workers]
    widths += [list(node.vector_widths) for node in layout.nodes]
    return {
        source: _Block(source, row_codec(codec, one), sum(one)) for source, one in enumerate(widths) if one
    }
