"""The rectangles of pooled tables that one worker holds: looked up and updated over all ranks' samples.

Those of sequences are in `local_sequences.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.comm.process_group import subgroup
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection, Window
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.table_state import TableShard, TableState, part_specs
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.coupled import CoupledTables, coupled_placements
from megalith.sharding.runtime.exchange import Received
from megalith.sharding.runtime.hierarchical import NodeSums
from megalith.sharding.runtime.layout import ExchangeLayout, Holding
from megalith.sharding.runtime.pooled import Vectors


class LocalShards:
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
        self._holdings, self._direct_width = worker.pooled_holdings, worker.direct_width
        # Streams that only sequences read stand behind those that are pooled.
        self._num_streams = worker.num_pooled_streams
        self._has_more = self._num_streams < len(worker.streams)
        held = self._holdings
        self.collection: EmbeddingCollection | None = None
        """The rectangles as tables; None on a worker that holds none."""
        if held:
            self.collection = EmbeddingCollection(
                [holding.spec() for holding in held],
                seed=seed,
                table_optimizers={h.name: optimizers[h.table.name] for h in held},
                stochastic_rounding=stochastic_rounding,
                windows={h.name: Window(h.table, h.shard.rows, h.shard.columns) for h in held},
            )
        node = layout.node_of(rank)
        self._node: NodeSums | None = None
        if any(one.width for one in layout.nodes):
            members = None if comm is None else subgroup(comm.group, layout.node_workers(node))
            if layout.nodes[node].width:
                inside = None if comm is None or members is None else CommContext.over(members, comm.traffic)
                self._node = NodeSums(layout, rank, inside)
        self._coupled: CoupledTables | None = None
        if coupled_placements(plan_of(plan, layout.pooled_tables), optimizers):
            # Also on a worker without such a holding: all of them take part in the exchange.
            self._coupled = CoupledTables(self.collection, held, plan, rank, comm)

    def read(self, received: Received) -> Vectors:
        """Pooled rows of all ranks' samples; what the node adds up is added up."""
        num_samples = sum(received.batches)
        if self.collection is None:
            direct = torch.empty(num_samples, 0)
            node = None if self._node is None else self._node.add_up(direct, received.batches)
            return Vectors(direct, node)
        pooled, *_ = self.collection.read(*self._lookup(received))
        if self._node is None:
            return Vectors(pooled, None)
        parts = pooled[:, self._direct_width :]
        return Vectors(pooled[:, : self._direct_width], self._node.add_up(parts, received.batches))

    def gradient(self, received: Received, gradients: Vectors) -> Tensor:
        """That of all columns of this worker, those of its node's sums included, [samples, columns]."""
        if self._node is None:
            return gradients.direct
        assert gradients.node is not None
        return torch.cat([gradients.direct, self._node.spread(gradients.node, received.batches)], dim=1)

    def sample_weight_gradient(self, received: Received, gradient: Tensor) -> Tensor:
        """Of the weights of all ids that are pooled here; before the update, which changes the rows."""
        if self.collection is None:
            return torch.empty(0)
        values, offsets, weights = self._lookup(received)
        assert weights is not None
        return self.collection.sample_weight_gradient(values, offsets, weights, gradient)

    def update(self, received: Received, gradient: Tensor, num_steps: int, lr_factor: float) -> None:
        """Step number `num_steps` on every row that a sample of any rank touched."""
        lookup = self._lookup(received)
        if self.collection is not None:
            self.collection.num_steps, self.collection.lr_factor = num_steps - 1, lr_factor
            slots = None if self._coupled is None else self._coupled.slots
            self.collection.update(*lookup, gradient, (), slots)
        if self._coupled is not None:
            self._coupled.update(*lookup, gradient)

    def table_state(self, table: TableSpec, optimizer: RowOptimizer) -> TableState:
        """A table as a checkpoint sees it: this worker holds some rectangles of it, or none."""
        return sharded_state(table, optimizer, self._holdings, self.collection)

    def _lookup(self, received: Received) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is pooled of all that came."""
        values, offsets, weights = received.values, received.offsets, received.sample_weights
        if self._has_more:
            offsets = offsets[: self._num_streams * sum(received.batches) + 1]
            end = int(offsets[-1])
            values, weights = values[:end], None if weights is None else weights[:end]
        return values, offsets, weights


def plan_of(plan: ShardingPlan, tables: Collection[TableSpec]) -> ShardingPlan:
    """The part of a plan that is about some tables."""
    names = {table.name for table in tables}
    return plan.model_copy(update={"placements": tuple(one for one in plan.placements if one.table in names)})


def sharded_state(
    table: TableSpec,
    optimizer: RowOptimizer,
    holdings: Sequence[Holding],
    collection: EmbeddingCollection | None,
) -> TableState:
    """A table as a checkpoint sees it, of whose rectangles a worker's collection holds some."""
    shards = [
        TableShard(holding.shard.rows[0], holding.shard.columns[0], collection.table_parts(holding.name))
        for holding in holdings
        if holding.table.name == table.name and collection is not None
    ]
    return TableState(table.rows, table.dim, part_specs(table, optimizer), tuple(shards))
