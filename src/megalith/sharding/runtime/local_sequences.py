"""The rectangles of sequence tables that one worker holds: a vector, or a part of it, for every id that came.

No sample has a say in it: the ids of a piece are looked up in a row, whoever sent them. Where columns are cut
and the optimizer looks at whole rows, `CoupledTables` takes the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection, Window
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.table_state import TableState
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.coupled import CoupledTables, coupled_placements
from megalith.sharding.runtime.exchange import Received
from megalith.sharding.runtime.layout import ExchangeLayout
from megalith.sharding.runtime.local import plan_of, sharded_state


class LocalSequences:
    def __init__(
        self,
        layout: ExchangeLayout,
        plan: ShardingPlan,
        rank: int,
        comm: CommContext | None,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        *,
        stochastic_rounding: bool,
    ) -> None:
        worker = layout.workers[rank]
        self._holdings = held = worker.sequence_holdings
        streams = {stream: number for number, stream in enumerate(worker.streams)}
        self._streams = [streams[one.stream] for one in worker.pieces]
        self._collection: EmbeddingCollection | None = None
        """The rectangles as tables, in which every piece is a feature."""
        if held:
            numbers = itertools.count()
            specs = [
                one.spec().model_copy(update={"features": tuple(str(next(numbers)) for _ in one.streams)})
                for one in held
            ]
            self._collection = EmbeddingCollection(
                specs,
                seed=seed,
                table_optimizers={one.name: optimizers[one.table.name] for one in held},
                stochastic_rounding=stochastic_rounding,
                windows={one.name: Window(one.table, one.shard.rows, one.shard.columns) for one in held},
            )
        self._coupled: CoupledTables | None = None
        tables = {table.name: table for table, _ in layout.sequences}
        if coupled_placements(plan_of(plan, tables.values()), optimizers):
            # Also on a worker without such a holding: all of them take part in the exchange.
            self._coupled = CoupledTables(self._collection, held, plan, rank, comm)

    def read(self, received: Received) -> list[Tensor]:
        """By piece: [ids of its stream, columns], rank after rank."""
        if self._collection is None:
            return []
        _, *rows = self._collection.read(*self._lookup(received))
        return rows

    def update(
        self, received: Received, gradients: Sequence[Tensor | None], num_steps: int, lr_factor: float
    ) -> None:
        """Step number `num_steps` on the rows of the pieces that have a gradient; all workers call it."""
        lookup = self._lookup(received)
        if self._collection is not None:
            self._collection.num_steps, self._collection.lr_factor = num_steps - 1, lr_factor
            slots = None if self._coupled is None else self._coupled.slots
            self._collection.update(*lookup, None, gradients, slots)
        if self._coupled is not None:
            self._coupled.update(*lookup, None, gradients)

    def table_state(self, table: TableSpec, optimizer: RowOptimizer) -> TableState:
        """A table as a checkpoint sees it: this worker holds some rectangles of it, or none."""
        return sharded_state(table, optimizer, self._holdings, self._collection)

    def _lookup(self, received: Received) -> tuple[Tensor, Tensor, None]:
        """The ids of the pieces, one bag for each."""
        total = sum(received.batches)
        ends = received.offsets[::total].tolist() if total else [0] * (max(self._streams, default=0) + 2)
        ids = [received.values[ends[stream] : ends[stream + 1]] for stream in self._streams]
        offsets = torch.tensor([0, *map(len, ids)]).cumsum(0)
        return torch.cat([received.values[:0], *ids]), offsets, None
