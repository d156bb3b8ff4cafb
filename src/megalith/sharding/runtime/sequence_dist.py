"""Sequences on several workers: a vector for every id goes back to the rank that asked, gradients come back.

They travel behind the pooled vectors, in the same messages (`output_dist.py`), piece by piece in the order of
the ids. An id's columns have one holder each, so that a rank places what it gets and adds nothing. Gradients
are sent with a head that says which outputs have one at all on this rank: what has none on any rank is left
untouched, as in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megalith.sharding.codecs import RowCodec, row_codec
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import SequencePiece
from megalith.sharding.plan import Codec, ExchangeConfig
from megalith.sharding.runtime.input_dist.id_positions import IdPositionFinder, IdPositions, rank_edges
from megalith.sharding.runtime.input_dist.input_dist import Received
from megalith.sharding.runtime.local_shards import LocalShards
from megalith.sharding.runtime.output_dist import ExtraPayload
from megalith.sharding.runtime.replicated import ReplicatedTables


@dataclass
class SequenceContext:
    """What the halves of a lookup, and of its backward pass, hand to each other."""

    found: IdPositions
    edges: list[list[int]]
    """By own piece, where the ids of each rank begin among its vectors, and where the last ones end."""
    outputs: list[Tensor]
    """By sequence: [ids of this rank, dim]"""
    gradients: list[Tensor] = field(default_factory=list)
    """By own piece: [ids of all ranks, columns]"""
    replicated: list[Tensor | None] = field(default_factory=list)
    """Gradients of this rank's sequences of replicated tables."""
    wanted: list[bool] = field(default_factory=list)
    """Whether what is pooled, and each sequence, has a gradient: on this rank, then on any."""


class SequenceDist:
    """The part of one rank. Made and called by the sharded collection."""

    def __init__(
        self,
        layout: ExchangeLayout,
        rank: int,
        config: ExchangeConfig,
        local: LocalShards,
        replicated: ReplicatedTables | None,
    ) -> None:
        self._rank, self._local, self._replicated = rank, local, replicated
        self._sequences = layout.sequences
        self._features = [layout.features.index(feature) for _, feature in layout.sequences]
        self._pieces = [worker.pieces for worker in layout.workers]
        own = layout.workers[rank]
        self._own = own.pieces
        self._streams = [own.streams.index(piece.stream) for piece in own.pieces]
        streams = (piece.stream for some in self._pieces for piece in some)
        self._positions = IdPositionFinder(streams, len(layout.features))
        self._forward = _Codecs(config.forward, self._pieces)
        self._backward = _Codecs(config.backward, self._pieces)
        copied = {table.name for table in layout.replicated}
        self._copied = [n for n, (table, _) in enumerate(layout.sequences) if table.name in copied]
        # Whole numbers of float32 follow.
        self._head_bytes = -(-(1 + len(layout.sequences)) // 4) * 4

    def start_reading(self, received: Received) -> tuple[SequenceContext, ExtraPayload]:
        """Looks up, and hands over what is to travel."""
        found = self._positions(received.own)
        edges = [[at - some[0] for at in some] for some in rank_edges(received, self._streams)]
        dims = [table.dim for table, _ in self._sequences]
        outputs = [
            torch.empty(found.sizes[feature], dim) for feature, dim in zip(self._features, dims, strict=True)
        ]
        if self._replicated is not None and self._copied:
            copies = self._replicated.read_sequences(received.own)
            for number, whole in zip(self._copied, copies, strict=True):
                outputs[number] = whole
        context = SequenceContext(found, edges, outputs)
        rows = self._local.read_sequences(received)

        def write(rank: int, memory: Tensor) -> None:
            counts = self._counts_of(context, rank)
            for number, block in self._forward.blocks(self._rank, counts, memory):
                begin, end = edges[number][rank : rank + 2]
                self._forward.write(self._rank, number, block, rows[number][begin:end])

        def read(worker: int, memory: Tensor) -> None:
            counts = self._counts_from(found, worker)
            for number, block in self._forward.blocks(worker, counts, memory):
                piece = self._pieces[worker][number]
                _place(outputs[piece.sequence], piece, found, self._forward.read(worker, number, block))

        for piece, some, edge in zip(self._own, rows, edges, strict=True):
            _place(outputs[piece.sequence], piece, found, some[edge[self._rank] : edge[self._rank + 1]])
        ranks = range(len(self._pieces))
        leaving = [self._forward.size(self._rank, self._counts_of(context, rank)) for rank in ranks]
        arriving = [self._forward.size(worker, self._counts_from(found, worker)) for worker in ranks]
        leaving[self._rank] = arriving[self._rank] = 0
        return context, ExtraPayload(leaving, arriving, write, read)

    def start_update(
        self, context: SequenceContext, gradients: Sequence[Tensor | None], pooled: bool
    ) -> ExtraPayload:
        """Hands over the gradients of this rank's sequences; `pooled` says whether what is pooled has one."""
        found, head = context.found, self._head_bytes
        context.wanted = [pooled, *(one is not None for one in gradients)]
        context.gradients = [
            torch.empty(edge[-1], piece.width) for piece, edge in zip(self._own, context.edges, strict=True)
        ]
        context.replicated = [gradients[number] for number in self._copied]
        said = torch.tensor(context.wanted, dtype=torch.uint8)

        def write(worker: int, memory: Tensor) -> None:
            memory[: len(said)] = said
            counts = self._counts_from(found, worker)
            for number, block in self._backward.blocks(worker, counts, memory[head:]):
                piece = self._pieces[worker][number]
                gradient = gradients[piece.sequence]
                if gradient is None:
                    block.zero_()
                else:
                    self._backward.write(worker, number, block, _take(gradient, piece, found))

        def read(rank: int, memory: Tensor) -> None:
            theirs = memory[: len(said)].tolist()
            context.wanted = [mine or bool(one) for mine, one in zip(context.wanted, theirs, strict=True)]
            counts = self._counts_of(context, rank)
            for number, block in self._backward.blocks(self._rank, counts, memory[head:]):
                begin, end = context.edges[number][rank : rank + 2]
                context.gradients[number][begin:end] = self._backward.read(self._rank, number, block)

        for piece, whole, edge in zip(self._own, context.gradients, context.edges, strict=True):
            own, gradient = whole[edge[self._rank] : edge[self._rank + 1]], gradients[piece.sequence]
            if gradient is None:
                own.zero_()
            else:
                own.copy_(_take(gradient, piece, found))
        ranks = range(len(self._pieces))
        leaving = [head + self._backward.size(worker, self._counts_from(found, worker)) for worker in ranks]
        arriving = [head + self._backward.size(self._rank, self._counts_of(context, rank)) for rank in ranks]
        leaving[self._rank] = arriving[self._rank] = 0
        return ExtraPayload(leaving, arriving, write, read)

    def wanted_of_copies(self, context: SequenceContext) -> list[bool]:
        """Whether what is pooled, and each sequence of a replicated table, has a gradient on any rank."""
        return [context.wanted[0], *(context.wanted[number + 1] for number in self._copied)]

    def update(self, context: SequenceContext, received: Received, num_steps: int, lr_factor: float) -> None:
        """Step number `num_steps` on the rows of this worker; gradients have arrived. All workers call it."""
        if not any(context.wanted[1:]):
            return
        given = [
            gradient if context.wanted[piece.sequence + 1] else None
            for piece, gradient in zip(self._own, context.gradients, strict=True)
        ]
        self._local.update_sequences(received, given, num_steps, lr_factor)

    def _counts_of(self, context: SequenceContext, rank: int) -> list[int]:
        """Vectors that this worker has for a rank, by piece."""
        return [edge[rank + 1] - edge[rank] for edge in context.edges]

    def _counts_from(self, found: IdPositions, worker: int) -> list[int]:
        """Vectors that a worker has for this rank, by piece."""
        return [found.count(piece.stream) for piece in self._pieces[worker]]


class _Codecs:
    """How the vectors of all pieces travel one way."""

    def __init__(self, codec: Codec, pieces: Sequence[Sequence[SequencePiece]]) -> None:
        self._plain = codec == "fp32"
        self._codecs: list[list[RowCodec]] = [
            [row_codec(codec, [piece.width]) for piece in some] for some in pieces
        ]

    def size(self, worker: int, counts: Sequence[int]) -> int:
        """Bytes of so many vectors of each of a worker's pieces."""
        codecs = self._codecs[worker]
        return sum(count * codec.row_bytes for count, codec in zip(counts, codecs, strict=True))

    def blocks(self, worker: int, counts: Sequence[int], memory: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The parts of a message that are not empty: the number of a piece and its rows of bytes."""
        at = 0
        for number, (count, codec) in enumerate(zip(counts, self._codecs[worker], strict=True)):
            size = count * codec.row_bytes
            if size:
                yield number, memory[at : at + size].view(count, codec.row_bytes)
            at += size

    def write(self, worker: int, number: int, block: Tensor, rows: Tensor) -> None:
        if self._plain:
            block.view(torch.float32).copy_(rows)
        else:
            block.copy_(self._codecs[worker][number].encode(rows))

    def read(self, worker: int, number: int, block: Tensor) -> Tensor:
        """May share memory with the message."""
        return block.view(torch.float32) if self._plain else self._codecs[worker][number].decode(block)


def _place(output: Tensor, piece: SequencePiece, found: IdPositions, rows: Tensor) -> None:
    columns = output[:, slice(*piece.columns)]
    if piece.stream.rows is None:
        columns.copy_(rows)
    else:
        columns.index_copy_(0, found.positions[piece.stream], rows)


def _take(gradient: Tensor, piece: SequencePiece, found: IdPositions) -> Tensor:
    columns = gradient[:, slice(*piece.columns)]
    return columns if piece.stream.rows is None else columns.index_select(0, found.positions[piece.stream])
