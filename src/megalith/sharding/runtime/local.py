"""The rectangles that one worker holds: looked up and updated over the samples of all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection, Window
from megalith.embeddings.optimizers import RowOptimizer
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.coupled import CoupledTables, coupled_placements
from megalith.sharding.runtime.exchange import Received
from megalith.sharding.runtime.hierarchical import NodeSums
from megalith.sharding.runtime.layout import ExchangeLayout, Holding
from megalith.sharding.runtime.pooled import Vectors
from megalith.sharding.runtime.process_group import subgroup
from megalith.sharding.runtime.sharded_table import ShardedTable, TableShard
from megalith.sharding.runtime.traffic import Traffic


class LocalShards:
    def __init__(
        self,
        layout: ExchangeLayout,
        plan: ShardingPlan,
        rank: int,
        group: dist.ProcessGroup | None,
        vector_group: dist.ProcessGroup | None,
        traffic: Traffic,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        *,
        stochastic_rounding: bool,
    ) -> None:
        worker = layout.workers[rank]
        self._holdings, self._direct_width = worker.holdings, worker.direct_width
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
            members = subgroup(group, layout.node_workers(node))
            if layout.nodes[node].width:
                self._node = NodeSums(layout, rank, members, traffic)
        self._coupled: CoupledTables | None = None
        self._slots: Tensor | None = None
        if coupled_placements(plan, optimizers):
            # Also on a worker without such a holding: all of them take part in the exchange.
            self._coupled = CoupledTables(self.collection, held, plan, rank, vector_group, traffic)
            if self.collection is not None and self._coupled.positions:
                slots = self.collection.layout.slots
                apart = torch.isin(slots[:, 0], torch.tensor(self._coupled.positions))
                self._slots = slots[~apart].contiguous()

    def read(self, received: Received) -> Vectors:
        """Pooled rows of all ranks' samples; what the node adds up is added up."""
        num_samples = sum(received.batches)
        if self.collection is None:
            direct = torch.empty(num_samples, 0)
            node = None if self._node is None else self._node.add_up(direct, received.batches)
            return Vectors(direct, node)
        pooled, *_ = self.collection.read(received.values, received.offsets, received.sample_weights)
        if self._node is None:
            return Vectors(pooled, None)
        parts = pooled[:, self._direct_width :]
        return Vectors(pooled[:, : self._direct_width], self._node.add_up(parts, received.batches))

    def update(self, received: Received, gradients: Vectors, num_steps: int, lr_factor: float) -> None:
        """Step number `num_steps` on every row that a sample of any rank touched."""
        gradient = gradients.direct
        if self._node is not None:
            assert gradients.node is not None
            gradient = torch.cat([gradient, self._node.spread(gradients.node, received.batches)], dim=1)
        lookup = received.values, received.offsets, received.sample_weights
        if self.collection is not None:
            self.collection.num_steps, self.collection.lr_factor = num_steps - 1, lr_factor
            self.collection.update(*lookup, gradient, (), self._slots)
        if self._coupled is not None:
            self._coupled.update(*lookup, gradient, num_steps, lr_factor)

    def checkpoint_tensors(self, table: TableSpec, optimizer: RowOptimizer) -> dict[str, ShardedTable]:
        """A table's weights and states, of which this worker holds some rectangles or none."""
        held = [holding for holding in self._holdings if holding.table.name == table.name]
        shape, dtype = (table.rows, table.dim), getattr(torch, table.dtype)
        weights = [TableShard(self._held().weight(h.name), _corner(h)) for h in held]
        tensors = {f"weights/{table.name}": ShardedTable(shape, dtype, weights)}
        for key, kind in (("first", optimizer.first_state), ("second", optimizer.second_state)):
            if kind == "none":
                continue
            states = [(h, self._held().state(h.name)[key]) for h in held]
            if kind == "full":
                shards = [TableShard(state, _corner(h)) for h, state in states]
            else:
                # Whoever has columns of a row has the row's number too; the holder of the first one writes.
                shards = [TableShard(s, (h.shard.rows[0],), h.shard.columns[0] == 0) for h, s in states]
            size = shape if kind == "full" else (table.rows,)
            tensors[f"states/{table.name}/{key}"] = ShardedTable(size, torch.float32, shards)
        return tensors

    def _held(self) -> EmbeddingCollection:
        assert self.collection is not None
        return self.collection


def _corner(holding: Holding) -> tuple[int, int]:
    return holding.shard.rows[0], holding.shard.columns[0]
