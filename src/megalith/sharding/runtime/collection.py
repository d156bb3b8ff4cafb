"""`ShardedEmbeddingCollection`: an `EmbeddingCollection` whose tables lie on many workers, as a plan says.

    emb = ShardedEmbeddingCollection(tables, plan, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # the samples of this rank -> [batch of this rank, sum of dims]
    out.backward(gradient)          # every row touched by any rank is updated once, by the worker that has it

All ranks call it alike, also with an empty batch. Gradients are summed over ranks, so a loss divided by the
global batch gives what one process with all samples would compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec, check_tables
from megalith.embeddings.check import LookupCheck
from megalith.embeddings.collection import EmbeddingCollection, Window
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.exchange import IndexExchange, Received, Sent
from megalith.sharding.runtime.layout import IN_NODE, ExchangeLayout, Holding
from megalith.sharding.runtime.means import scale_, shares
from megalith.sharding.runtime.pooled import VectorExchange, Vectors
from megalith.sharding.runtime.process_group import place_in, subgroup
from megalith.sharding.runtime.sharded_table import ShardedTable, TableShard
from megalith.sharding.runtime.traffic import Traffic


class ShardedEmbeddingCollection(nn.Module):
    """Embedding tables over one list of features, on all workers of a plan."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        plan: ShardingPlan,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        *,
        table_optimizers: Mapping[str, RowOptimizer] | None = None,
        stochastic_rounding: bool = True,
        output_dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        check_tables(tables)
        plan.check(tables)
        place = place_in(group)
        if place.world_size != plan.world_size:
            raise PlanError(
                f"The plan is for {plan.world_size} workers and there are {place.world_size}; make it again "
                "with `megalith plan`."
            )
        for table in tables:
            if table.pooling == "none" or plan.placement(table.name).kind in ("data_parallel", *IN_NODE):
                raise PlanError(f"Table '{table.name}' cannot be placed so; place it table_wise.")
        self.tables, self.plan, self.rank = tuple(tables), plan, place.rank
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        self.seed, self.stochastic_rounding, self.output_dtype = seed, stochastic_rounding, output_dtype
        self.num_steps, self.lr_factor = 0, 1.0
        self.exchange_layout = ExchangeLayout(tables, plan)
        self.features, self.output_dim = self.exchange_layout.features, self.exchange_layout.output_dim
        self.traffic = Traffic()
        everyone = range(place.world_size)
        self._indices = IndexExchange(
            self.exchange_layout,
            self.rank,
            subgroup(group, everyone),
            self.traffic,
            wide_ids=any(table.rows > 1 << 31 for table in tables),
            deduplicate=plan.exchange.deduplicate,
        )
        self._vectors = VectorExchange(
            self.exchange_layout, self.rank, subgroup(group, everyone), self.traffic, plan.exchange
        )
        self._check = LookupCheck(tables)
        own = table_optimizers or {}
        self._holdings = holdings = self.exchange_layout.workers[self.rank].holdings
        self.optimizers = [own.get(table.name, self.optimizer) for table in tables]
        self.local: EmbeddingCollection | None = None
        if holdings:
            self.local = EmbeddingCollection(
                [holding.spec() for holding in holdings],
                self.optimizer,
                seed,
                table_optimizers={h.name: own[h.table.name] for h in holdings if h.table.name in own},
                stochastic_rounding=stochastic_rounding,
                windows={h.name: Window(h.table, h.shard.rows, h.shard.columns) for h in holdings},
            )
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim] of this rank's samples."""
        return self.lookup(self.receive(self.send(values, offsets, sample_weights)))

    @torch.no_grad()
    def send(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Sent:
        """Starts the exchange of a batch's ids and returns at once."""
        offsets = offsets.contiguous()
        if sample_weights is not None:
            sample_weights = sample_weights.float().contiguous()
        self._check(values, offsets, sample_weights)
        return self._indices.send(values, offsets, sample_weights)

    @torch.no_grad()
    def receive(self, sent: Sent) -> Received:
        """Waits for the ids that this worker looks up."""
        return self._indices.receive(sent)

    @torch.compiler.disable
    def lookup(self, received: Received) -> Tensor:
        """Pooled vectors [batch, output_dim] of this rank's samples, joined to autograd."""
        anchor = self._anchor if torch.is_grad_enabled() else self._anchor.detach()
        pooled: Tensor = _Lookup.apply(anchor, self, received)
        return pooled

    def checkpoint_tensors(self) -> dict[str, ShardedTable | Tensor]:
        """`weights/T`, `states/T/first` and `states/T/second` of every table; loading writes into them."""
        tensors: dict[str, ShardedTable | Tensor] = {}
        for table, optimizer in zip(self.tables, self.optimizers, strict=True):
            shapes = {"first": optimizer.first_state, "second": optimizer.second_state}
            keys = [name for name, shape in shapes.items() if shape != "none"]
            weights, states = f"weights/{table.name}", {key: f"states/{table.name}/{key}" for key in keys}
            held = [holding for holding in self._holdings if holding.table.name == table.name]
            shards = [TableShard(self._local(h).weight(h.name), _corner(h)) for h in held]
            dtype = getattr(torch, table.dtype)
            tensors[weights] = ShardedTable((table.rows, table.dim), dtype, shards)
            for key, name in states.items():
                parts = [(h, self._local(h).state(h.name)[key]) for h in held]
                if shapes[key] == "full":
                    shards = [TableShard(tensor, _corner(h)) for h, tensor in parts]
                    tensors[name] = ShardedTable((table.rows, table.dim), torch.float32, shards)
                else:
                    # Every worker that has columns of a row has the row's number too.
                    shards = [
                        TableShard(tensor, (h.shard.rows[0],), h.shard.columns[0] == 0) for h, tensor in parts
                    ]
                    tensors[name] = ShardedTable((table.rows,), torch.float32, shards)
        return tensors

    def read(self, received: Received) -> Tensor:
        batch, divided = received.own.batch, self.exchange_layout.divided
        vectors = self._read_local(received)
        pending = self._vectors.start_forward(vectors, received.batches)
        pooled = self._vectors.finish_forward(pending, batch, None)
        if divided:
            scale_(pooled, divided, shares(divided, received.own))
        return pooled.to(self.output_dtype)

    def update(self, received: Received, gradient: Tensor) -> None:
        self.num_steps += 1
        divided, gradient = self.exchange_layout.divided, gradient.float()
        if divided:
            gradient = gradient.clone()
            scale_(gradient, divided, shares(divided, received.own))
        pending = self._vectors.start_backward(gradient, received.batches)
        vectors = self._vectors.finish_backward(pending, received.batches)
        if self.local is not None:
            self.local.lr_factor = self.lr_factor
            self.local.update(received.values, received.offsets, received.sample_weights, vectors.direct, [])

    def _read_local(self, received: Received) -> Vectors:
        if self.local is None:
            return Vectors(torch.empty(sum(received.batches), 0), None)
        pooled, *_ = self.local.read(received.values, received.offsets, received.sample_weights)
        return Vectors(pooled, None)

    def _local(self, _: Holding) -> EmbeddingCollection:
        assert self.local is not None
        return self.local


def _corner(holding: Holding) -> tuple[int, int]:
    return holding.shard.rows[0], holding.shard.columns[0]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, emb: ShardedEmbeddingCollection, received: Received) -> Tensor:
        ctx.emb, ctx.received = emb, received
        return emb.read(received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.emb.update(ctx.received, gradients[0])
        return None, None, None
