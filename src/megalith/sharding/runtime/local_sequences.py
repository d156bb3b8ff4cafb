"""The rectangles of sequence tables that one worker holds: a vector, or a part of it, for every id that came.

No sample has a say in it: the ids of a piece are looked up in a row, whoever sent them. Where columns are cut
and the optimizer looks at whole rows, `CoupledTables` takes the step: to it every id is a sample of its own,
whose sum is that of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection, Window
from megalith.embeddings.layout import Layout
from megalith.embeddings.optimizers import RowOptimizer
from megalith.ops import embedding as ops
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.coupled import ROW_COUPLED, CoupledTables, coupled_placements
from megalith.sharding.runtime.exchange import Received
from megalith.sharding.runtime.layout import ExchangeLayout, Holding
from megalith.sharding.runtime.local import plan_of, sharded_tensors
from megalith.sharding.runtime.sharded_table import ShardedTable
from megalith.sharding.runtime.traffic import Traffic


class LocalSequences:
    def __init__(
        self,
        layout: ExchangeLayout,
        plan: ShardingPlan,
        rank: int,
        group: dist.ProcessGroup | None,
        traffic: Traffic,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        *,
        stochastic_rounding: bool,
    ) -> None:
        worker = layout.workers[rank]
        plain: list[tuple[int, Holding]] = []
        coupled: list[tuple[int, Holding]] = []
        piece = 0
        for holding in worker.sequence_holdings:
            cut = holding.shard.dim < holding.table.dim
            apart = cut and optimizers[holding.table.name].kind in ROW_COUPLED
            (coupled if apart else plain).append((piece, holding))
            piece += len(holding.streams)
        self._num_pieces = piece
        streams = {stream: number for number, stream in enumerate(worker.streams)}
        self._streams = [streams[one.stream] for one in worker.pieces]
        options = optimizers, seed, stochastic_rounding
        self._plain = _Tables(plain, "none", *options) if plain else None
        self._apart = _Tables(coupled, "sum", *options) if coupled else None
        self._coupled: CoupledTables | None = None
        tables = {table.name: table for table, _ in layout.sequences}
        if coupled_placements(plan_of(plan, tables.values()), optimizers):
            # Also on a worker without such a holding: all of them take part in the exchange.
            collection = None if self._apart is None else self._apart.collection
            held = [holding for _, holding in coupled]
            self._coupled = CoupledTables(collection, held, plan, rank, group, traffic)

    def read(self, received: Received) -> list[Tensor]:
        """By piece: [ids of its stream, columns], rank after rank."""
        found: list[Tensor] = [torch.empty(0)] * self._num_pieces
        for tables in (self._plain, self._apart):
            if tables is not None:
                ids = self._ids(received, tables.pieces)
                for piece, rows in zip(tables.pieces, tables.read(ids), strict=True):
                    found[piece] = rows
        return found

    def update(
        self, received: Received, gradients: Sequence[Tensor | None], num_steps: int, lr_factor: float
    ) -> None:
        """Step number `num_steps` on the rows of the pieces that have a gradient; all workers call it."""
        if self._plain is not None:
            collection, pieces = self._plain.collection, self._plain.pieces
            collection.num_steps, collection.lr_factor = num_steps - 1, lr_factor
            ids = self._ids(received, pieces)
            collection.update(torch.cat(ids), _ends(ids), None, None, [gradients[piece] for piece in pieces])
        if self._coupled is None:
            return
        if self._apart is None:
            nothing = torch.empty(0)
            self._coupled.update(nothing, nothing, None, nothing, num_steps, lr_factor)
            return
        ids = self._ids(received, self._apart.pieces)
        given = [gradients[piece] for piece in self._apart.pieces]
        ids = [some if one is not None else some[:0] for some, one in zip(ids, given, strict=True)]
        lookup = torch.cat(ids), _single_offsets(ids), None
        gradient = self._apart.side_by_side(given, max(map(len, ids)))
        self._coupled.update(*lookup, gradient, num_steps, lr_factor)

    def checkpoint_tensors(self, table: TableSpec, optimizer: RowOptimizer) -> dict[str, ShardedTable]:
        """A table's weights and states, of which this worker holds some rectangles or none."""
        held = [
            (holding, tables.collection)
            for tables in (self._plain, self._apart)
            if tables is not None
            for holding in tables.holdings
            if holding.table.name == table.name
        ]
        return sharded_tensors(table, optimizer, held)

    def _ids(self, received: Received, pieces: Sequence[int]) -> list[Tensor]:
        total = sum(received.batches)
        if not total:
            return [received.values[:0] for _ in pieces]
        ends = received.offsets[::total].tolist()
        streams = [self._streams[piece] for piece in pieces]
        return [received.values[ends[stream] : ends[stream + 1]] for stream in streams]


class _Tables:
    """Some of the rectangles as tables, in which every piece is a feature."""

    def __init__(
        self,
        held: Sequence[tuple[int, Holding]],
        pooling: str,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        stochastic_rounding: bool,
    ) -> None:
        self.holdings = [holding for _, holding in held]
        self.pieces = [first + place for first, holding in held for place in range(len(holding.streams))]
        specs = []
        for first, holding in held:
            features = tuple(str(first + place) for place in range(len(holding.streams)))
            specs.append(holding.spec().model_copy(update={"features": features}))
        self.collection = EmbeddingCollection(
            [spec.model_copy(update={"pooling": pooling}) for spec in specs],
            seed=seed,
            table_optimizers={one.name: optimizers[one.table.name] for one in self.holdings},
            stochastic_rounding=stochastic_rounding,
            windows={one.name: Window(one.table, one.shard.rows, one.shard.columns) for one in self.holdings},
        )
        self._layout = Layout(specs)
        self._weights = [self.collection.weight(spec.name) for spec in specs]

    def read(self, ids: Sequence[Tensor]) -> list[Tensor]:
        values, offsets = torch.cat(list(ids)), _ends(ids)
        lookup = self._layout.slots, values, offsets, None, len(ids)
        return [
            ops.embedding_sequence(self._weights, *lookup, slot, table.dim, torch.float32)
            for slot, table, _ in self._layout.sequences
        ]

    def side_by_side(self, gradients: Sequence[Tensor | None], most: int) -> Tensor:
        """Gradients of ids as if all pieces had the same samples, [most ids of a piece, columns]."""
        widths = [table.dim for _, table, _ in self._layout.sequences]
        together = torch.zeros(most, sum(widths))
        for columns, one in zip(together.split(widths, dim=1), gradients, strict=True):
            if one is not None:
                columns[: len(one)] = one
        return together


def _ends(ids: Sequence[Tensor]) -> Tensor:
    """Offsets of one bag for each piece."""
    return torch.tensor([0, *map(len, ids)]).cumsum(0)


def _single_offsets(ids: Sequence[Tensor]) -> Tensor:
    """Offsets of bags of one id, and of empty ones behind them, so that every piece has as many bags."""
    counts = torch.tensor([len(some) for some in ids]).unsqueeze(1)
    lengths = torch.arange(int(counts.max())) < counts
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.view(-1).cumsum(0)])
