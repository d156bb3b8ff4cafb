"""`SequenceDist`: a vector for every id, of tables that do not pool, to the rank that asked; gradients back.

The lookup (`lookup.py`) calls it, and gives what it hands over to `output_dist.py`: the vectors travel behind
the pooled ones, in the same messages, piece by piece in the order of the ids. It owns their
codecs; rows are those of `local_shards.py` and `replicated.py`. An id's columns have one holder each, so that
a rank puts what it gets in place and adds nothing. Gradients are sent with a header that says which outputs
have one at all on this rank: what has none on any rank is left untouched, as in one process.
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
from megalith.sharding.runtime.input_dist.jagged_ids import ReceivedIds
from megalith.sharding.runtime.local_shards import LocalShards, ResolvedShards
from megalith.sharding.runtime.output_dist import ExtraPayload
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.wire_format import gradient_flag_bytes


@dataclass
class SequenceContext:
    """What the halves of a lookup, and of its backward pass, hand to each other."""

    positions: IdPositions
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
    """The exchange of sequences and their gradients, as one rank takes part in it."""

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
        streams = (piece.stream for pieces in self._pieces for piece in pieces)
        self._find_positions = IdPositionFinder(streams, len(layout.features))
        self._forward = _PieceCodecs(config.forward, self._pieces)
        self._backward = _PieceCodecs(config.backward, self._pieces)
        self._replicated_sequences = [
            number for number, (table, _) in enumerate(layout.sequences) if table in layout.replicated
        ]
        # One flag for what is pooled, and one for each sequence.
        self._header_bytes = gradient_flag_bytes(1 + len(layout.sequences))

    def start_forward(
        self, received: ReceivedIds, resolved: ResolvedShards
    ) -> tuple[SequenceContext, ExtraPayload]:
        """Looks up, and hands over what is to travel."""
        positions = self._find_positions(received.own)
        edges = [[at - edge[0] for at in edge] for edge in rank_edges(received, self._streams)]
        dims = [table.dim for table, _ in self._sequences]
        outputs = [
            torch.empty(positions.sizes[feature], dim)
            for feature, dim in zip(self._features, dims, strict=True)
        ]
        if self._replicated is not None and self._replicated_sequences:
            whole = self._replicated.read_sequences(received.own)
            for number, vectors in zip(self._replicated_sequences, whole, strict=True):
                outputs[number] = vectors
        context = SequenceContext(positions, edges, outputs)
        rows = self._local.read_sequences(resolved)

        def write(rank: int, memory: Tensor) -> None:
            counts = self._counts_of(context, rank)
            for number, block in self._forward.blocks(self._rank, counts, memory):
                begin, end = edges[number][rank : rank + 2]
                self._forward.write(self._rank, number, block, rows[number][begin:end])

        def read(worker: int, memory: Tensor) -> None:
            counts = self._counts_from(positions, worker)
            for number, block in self._forward.blocks(worker, counts, memory):
                piece = self._pieces[worker][number]
                vectors = self._forward.read(worker, number, block)
                _write_columns(outputs[piece.sequence], piece, positions, vectors)

        for piece, vectors, edge in zip(self._own, rows, edges, strict=True):
            own = vectors[edge[self._rank] : edge[self._rank + 1]]
            _write_columns(outputs[piece.sequence], piece, positions, own)
        ranks = range(len(self._pieces))
        sent_bytes = [self._forward.size(self._rank, self._counts_of(context, rank)) for rank in ranks]
        received_bytes = [
            self._forward.size(worker, self._counts_from(positions, worker)) for worker in ranks
        ]
        sent_bytes[self._rank] = received_bytes[self._rank] = 0
        return context, ExtraPayload(sent_bytes, received_bytes, write, read)

    def start_backward(
        self, context: SequenceContext, gradients: Sequence[Tensor | None], pooled: bool
    ) -> ExtraPayload:
        """Hands over the gradients of this rank's sequences; `pooled` says whether what is pooled has one."""
        positions, header = context.positions, self._header_bytes
        context.wanted = [pooled, *(gradient is not None for gradient in gradients)]
        context.gradients = [
            torch.empty(edge[-1], piece.width) for piece, edge in zip(self._own, context.edges, strict=True)
        ]
        context.replicated = [gradients[number] for number in self._replicated_sequences]
        flags = torch.tensor(context.wanted, dtype=torch.uint8)

        def write(worker: int, memory: Tensor) -> None:
            memory[: len(flags)] = flags
            counts = self._counts_from(positions, worker)
            for number, block in self._backward.blocks(worker, counts, memory[header:]):
                piece = self._pieces[worker][number]
                gradient = gradients[piece.sequence]
                if gradient is None:
                    block.zero_()
                else:
                    self._backward.write(worker, number, block, _read_columns(gradient, piece, positions))

        def read(rank: int, memory: Tensor) -> None:
            theirs = memory[: len(flags)].tolist()
            context.wanted = [
                wanted or bool(flag) for wanted, flag in zip(context.wanted, theirs, strict=True)
            ]
            counts = self._counts_of(context, rank)
            for number, block in self._backward.blocks(self._rank, counts, memory[header:]):
                begin, end = context.edges[number][rank : rank + 2]
                context.gradients[number][begin:end] = self._backward.read(self._rank, number, block)

        for piece, whole, edge in zip(self._own, context.gradients, context.edges, strict=True):
            own, gradient = whole[edge[self._rank] : edge[self._rank + 1]], gradients[piece.sequence]
            if gradient is None:
                own.zero_()
            else:
                own.copy_(_read_columns(gradient, piece, positions))
        ranks = range(len(self._pieces))
        sent_bytes = [
            header + self._backward.size(worker, self._counts_from(positions, worker)) for worker in ranks
        ]
        received_bytes = [
            header + self._backward.size(self._rank, self._counts_of(context, rank)) for rank in ranks
        ]
        sent_bytes[self._rank] = received_bytes[self._rank] = 0
        return ExtraPayload(sent_bytes, received_bytes, write, read)

    def wanted_of_replicated(self, context: SequenceContext) -> list[bool]:
        """Whether what is pooled, and each sequence of a replicated table, has a gradient on any rank."""
        return [context.wanted[0], *(context.wanted[number + 1] for number in self._replicated_sequences)]

    def update(
        self, context: SequenceContext, rows: ResolvedShards, num_steps: int, lr_factor: float
    ) -> None:
        """Step number `num_steps` on the rows of this worker; gradients have arrived. All workers call it."""
        if not any(context.wanted[1:]):
            return
        gradients = [
            gradient if context.wanted[piece.sequence + 1] else None
            for piece, gradient in zip(self._own, context.gradients, strict=True)
        ]
        self._local.update_sequences(rows, gradients, num_steps, lr_factor)

    def _counts_of(self, context: SequenceContext, rank: int) -> list[int]:
        """Vectors that this worker has for a rank, by piece."""
        return [edge[rank + 1] - edge[rank] for edge in context.edges]

    def _counts_from(self, positions: IdPositions, worker: int) -> list[int]:
        """Vectors that a worker has for this rank, by piece."""
        return [positions.count(piece.stream) for piece in self._pieces[worker]]


class _PieceCodecs:
    """The codecs of all pieces, for one way."""

    def __init__(self, codec: Codec, pieces: Sequence[Sequence[SequencePiece]]) -> None:
        self._is_float32 = codec == "fp32"
        self._codecs: list[list[RowCodec]] = [
            [row_codec(codec, [piece.width]) for piece in of_worker] for of_worker in pieces
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
        if self._is_float32:
            block.view(torch.float32).copy_(rows)
        else:
            block.copy_(self._codecs[worker][number].encode(rows))

    def read(self, worker: int, number: int, block: Tensor) -> Tensor:
        """May share memory with the message."""
        return block.view(torch.float32) if self._is_float32 else self._codecs[worker][number].decode(block)


def _write_columns(output: Tensor, piece: SequencePiece, positions: IdPositions, rows: Tensor) -> None:
    """Puts the vectors of a piece where their ids stand."""
    columns = output[:, slice(*piece.columns)]
    if piece.stream.rows is None:
        columns.copy_(rows)
    else:
        columns.index_copy_(0, positions.positions[piece.stream], rows)


def _read_columns(gradient: Tensor, piece: SequencePiece, positions: IdPositions) -> Tensor:
    """The gradients of a piece's vectors."""
    columns = gradient[:, slice(*piece.columns)]
    if piece.stream.rows is None:
        return columns
    return columns.index_select(0, positions.positions[piece.stream])
