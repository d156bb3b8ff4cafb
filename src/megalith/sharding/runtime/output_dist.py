"""`OutputDist`: pooled vectors from the workers that looked them up to the samples' ranks; gradients back.

The lookup (`lookup.py`) starts and finishes both ways; what it computes in between overlaps. Each way is one
all-to-all, which this stage owns. A worker's vectors lie sample by sample, so what a rank gets is a
block of whole rows. The rank adds parts of sums in the order of workers. What a process keeps for itself
never travels. Sums of a node (`node_reduce.py`) travel in the same message, behind the worker's own columns,
and behind those whatever else goes between the same two (`sequence_dist.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.all_to_all import AllToAll, PendingExchange
from megalith.comm.context import CommContext
from megalith.sharding.codecs import RowCodec, row_codec
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import Codec, ExchangeConfig
from megalith.sharding.runtime.pooled_columns import ColumnGather, ColumnSplit


class WorkerVectors(NamedTuple):
    """Rows that a worker has looked up, or their gradients."""

    direct: Tensor
    """[samples of all ranks, direct columns of this worker]"""
    node: Tensor | None
    """[samples of the ranks that it is the relay of, columns of the node's sums]"""


class ExtraPayload(NamedTuple):
    """What travels behind the vectors, in the same messages."""

    sent_bytes: list[int]
    """To each rank; 0 to itself."""
    received_bytes: list[int]
    """From each rank."""
    write: Callable[[int, Tensor], None]
    """Fills the part of the message to a rank."""
    read: Callable[[int, Tensor], None]
    """Takes what came from a rank out of the message, which is only valid during the call."""


class PendingOutput(NamedTuple):
    """Vectors, or their gradients, on their way."""

    exchange: PendingExchange | None
    own: WorkerVectors
    """What this process keeps for itself: rows of its own samples."""
    whole: Tensor | None = None
    """Where gradients of all samples come to lie; its own are there."""
    payload: ExtraPayload | None = None


class _Block(NamedTuple):
    """Rows that one worker sends to a rank, or gets gradients for: its own columns or its node's."""

    source: int
    codec: RowCodec
    is_float32: bool
    """Whether they travel as they are."""


class OutputDist:
    """The exchange of pooled vectors and their gradients, as one worker takes part in it."""

    def __init__(
        self,
        layout: ExchangeLayout,
        rank: int,
        comm: CommContext | None,
        config: ExchangeConfig,
    ) -> None:
        self._layout, self._rank = layout, rank
        self.relayed_ranks = [
            other for other in range(layout.world_size) if layout.relay(layout.node_of(rank), other) == rank
        ]
        """The ranks to which this worker relays the sums of its node."""
        self._forward = _blocks(layout, config.forward)
        self._backward = _blocks(layout, config.backward)
        self._gather = ColumnGather(layout.levels)
        self._splits = [ColumnSplit(columns) for columns in layout.sources]
        # Evaluation sends vectors twice in a row; gradients always come between vectors.
        self._vectors = None if comm is None else comm.all_to_all("vectors", depth=2)
        self._gradients = None if comm is None else comm.all_to_all("gradients")

    def start_forward(
        self, vectors: WorkerVectors, batches: Sequence[int], payload: ExtraPayload | None = None
    ) -> PendingOutput:
        """Sends each rank its rows."""
        rank = self._rank
        direct = vectors.direct.split(list(batches))
        node: dict[int, Tensor] = {}
        if vectors.node is not None:
            rows = vectors.node.split([batches[other] for other in self.relayed_ranks])
            node = dict(zip(self.relayed_ranks, rows, strict=True))
        own = WorkerVectors(direct[rank], node.get(rank))
        if self._vectors is None:
            return PendingOutput(None, own)
        blocks = self._forward
        sizes = [self._row_bytes(blocks, rank, other) * batch for other, batch in enumerate(batches)]
        for other, buffer in enumerate(_buffers(self._vectors, sizes, payload)):
            for block, rows in self._rows_of(blocks, rank, other, buffer, batches[other]):
                given = direct[other] if block.source == rank else node[other]
                if block.is_float32:
                    rows.copy_(given)
                else:
                    rows.copy_(block.codec.encode(given))
        received_bytes = [
            self._row_bytes(blocks, worker, rank) * batches[rank] for worker in range(len(batches))
        ]
        return PendingOutput(_started(self._vectors, received_bytes, payload), own, None, payload)

    def finish_forward(self, pending: PendingOutput, batch: int, replicated: Tensor | None) -> Tensor:
        """Waits, and puts this rank's pooled rows together, [batch, output_dim]."""
        layout, rank = self._layout, self._rank
        chunks: dict[int, Tensor] = {rank: pending.own.direct}
        if pending.own.node is not None:
            chunks[layout.world_size + layout.node_of(rank)] = pending.own.node
        if replicated is not None:
            chunks[len(layout.sources) - 1] = replicated
        if self._vectors is not None and pending.exchange is not None:
            for worker, arrived in enumerate(self._vectors.wait(pending.exchange)):
                for block, rows in self._rows_of(self._forward, worker, rank, arrived, batch):
                    chunks[block.source] = rows if block.is_float32 else block.codec.decode(rows)
                if pending.payload is not None and worker != rank:
                    end = self._row_bytes(self._forward, worker, rank) * batch
                    pending.payload.read(worker, arrived[end:])
        return self._gather(chunks, batch)

    def start_backward(
        self, gradient: Tensor, batches: Sequence[int], payload: ExtraPayload | None = None
    ) -> PendingOutput:
        """Sends each worker the gradients of what it looked up for this rank, [batch, output_dim]."""
        layout, rank, batch = self._layout, self._rank, batches[self._rank]
        node = layout.world_size + layout.node_of(rank)
        own_node = self._splits[node](gradient) if layout.sources[node] else None
        if self._gradients is None:
            return PendingOutput(None, WorkerVectors(self._splits[rank](gradient), own_node))
        whole = torch.empty(sum(batches), layout.workers[rank].direct_width)
        first = sum(batches[:rank])
        own = WorkerVectors(whole[first : first + batch], own_node)
        self._splits[rank](gradient, own.direct)
        blocks = self._backward
        sizes = [self._row_bytes(blocks, worker, rank) * batch for worker in range(len(batches))]
        for worker, buffer in enumerate(_buffers(self._gradients, sizes, payload)):
            for block, rows in self._rows_of(blocks, worker, rank, buffer, batch):
                split = self._splits[block.source]
                if block.is_float32:
                    split(gradient, rows)
                else:
                    rows.copy_(block.codec.encode(split(gradient)))
        received_bytes = [self._row_bytes(blocks, rank, other) * batch for other, batch in enumerate(batches)]
        return PendingOutput(_started(self._gradients, received_bytes, payload), own, whole, payload)

    def finish_backward(self, pending: PendingOutput, batches: Sequence[int]) -> WorkerVectors:
        """Waits, and returns the gradients of what this worker looked up, over the samples of all ranks."""
        if self._gradients is None or pending.exchange is None:
            return pending.own
        assert pending.whole is not None
        direct = pending.whole.split(list(batches))
        node: dict[int, Tensor] = {}
        if pending.own.node is not None:
            node[self._rank] = pending.own.node
        for other, arrived in enumerate(self._gradients.wait(pending.exchange)):
            for block, rows in self._rows_of(self._backward, self._rank, other, arrived, batches[other]):
                decoded = rows if block.is_float32 else block.codec.decode(rows)
                if block.source == self._rank:
                    direct[other].copy_(decoded)
                else:
                    node[other] = decoded
            if pending.payload is not None and other != self._rank:
                end = self._row_bytes(self._backward, self._rank, other) * batches[other]
                pending.payload.read(other, arrived[end:])
        node_rows = torch.cat([node[other] for other in sorted(node)]) if node else None
        return WorkerVectors(pending.whole, node_rows)

    def _rows_of(
        self, blocks: dict[int, _Block], worker: int, rank: int, message: Tensor, batch: int
    ) -> Iterator[tuple[_Block, Tensor]]:
        """The blocks of a message, as rows of float32 or of bytes."""
        at = 0
        for block in self._blocks_between(blocks, worker, rank):
            size = batch * block.codec.row_bytes
            part = message[at : at + size]
            rows = part.view(torch.float32) if block.is_float32 else part
            yield block, rows.view(batch, block.codec.row_bytes // rows.element_size())
            at += size

    def _blocks_between(self, blocks: dict[int, _Block], worker: int, rank: int) -> list[_Block]:
        """What a worker sends to a rank that is not itself."""
        layout = self._layout
        if worker == rank:
            return []
        node = layout.node_of(worker)
        relays = layout.world_size + node in blocks and layout.relay(node, rank) == worker
        sources = [worker, layout.world_size + node] if relays else [worker]
        return [blocks[source] for source in sources if source in blocks]

    def _row_bytes(self, blocks: dict[int, _Block], worker: int, rank: int) -> int:
        return sum(block.codec.row_bytes for block in self._blocks_between(blocks, worker, rank))


def _buffers(all_to_all: AllToAll, sizes: list[int], payload: ExtraPayload | None) -> list[Tensor]:
    """Where vectors are written; what travels behind them is there already."""
    buffers = all_to_all.buffers(sizes if payload is None else _added(sizes, payload.sent_bytes))
    if payload is not None:
        for rank, (buffer, size) in enumerate(zip(buffers, sizes, strict=True)):
            if payload.sent_bytes[rank]:
                payload.write(rank, buffer[size:])
    return buffers


def _started(all_to_all: AllToAll, sizes: list[int], payload: ExtraPayload | None) -> PendingExchange:
    return all_to_all.start(sizes if payload is None else _added(sizes, payload.received_bytes))


def _added(sizes: list[int], more: list[int]) -> list[int]:
    return [size + other for size, other in zip(sizes, more, strict=True)]


def _blocks(layout: ExchangeLayout, codec: Codec) -> dict[int, _Block]:
    """What can travel: the columns of each source that has any."""
    widths = [worker.vector_widths for worker in layout.workers]
    widths += [list(node.vector_widths) for node in layout.nodes]
    return {
        source: _Block(source, row_codec(codec, of_source), codec == "fp32")
        for source, of_source in enumerate(widths)
        if of_source
    }
