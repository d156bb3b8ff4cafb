"""`ShardedEmbeddingCollection`: an `EmbeddingCollection` whose tables lie on many workers, as a plan says.

    emb = ShardedEmbeddingCollection(tables, plan, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # the samples of this rank -> [batch of this rank, sum of dims]
    out.backward(gradient)          # every row touched by any rank is updated once, by the worker that has it
    emb.lookup(values, offsets)     # pooled vectors and, of tables that do not pool, one for every id

All ranks call it alike, also with an empty batch. Gradients are summed over ranks, so a loss divided by the
global batch gives what one process with all samples would compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megalith.core.errors import ConfigError, PlanError, nearest
from megalith.core.schema import TableSpec, check_tables
from megalith.embeddings.check import LookupCheck
from megalith.embeddings.collection import Lookup
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.ops.indices import NARROW_ROWS
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.columns import Taking
from megalith.sharding.runtime.exchange import IndexExchange, Received, Sent
from megalith.sharding.runtime.layout import ExchangeLayout
from megalith.sharding.runtime.local import LocalShards
from megalith.sharding.runtime.local_sequences import LocalSequences
from megalith.sharding.runtime.means import scale_, shares
from megalith.sharding.runtime.pooled import Pending, VectorExchange
from megalith.sharding.runtime.process_group import place_in, subgroup
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.runtime.sequences import SequenceFlight, Sequences
from megalith.sharding.runtime.sharded_table import ShardedTable
from megalith.sharding.runtime.traffic import Traffic
from megalith.sharding.runtime.weight_gradients import WeightGradients


class Looking(NamedTuple):
    """A lookup whose vectors are on their way."""

    token: Tensor
    """Joins the two halves in autograd."""
    flight: _Flight


class _Flight:
    """What the halves of a lookup, and of its backward pass, hand to each other."""

    def __init__(self, received: Received) -> None:
        self.received = received
        self.vectors: Pending | None = None
        self.replicated: Tensor | None = None
        self.shares: list[Tensor] = []
        self.sequences: SequenceFlight | None = None
        self.gradients: Pending | None = None
        self.replicated_gradient: Tensor | None = None


class ShardedEmbeddingCollection(nn.Module):
    """Embedding tables over one list of features, on all workers of a plan.

    `group` is the group of the plan's workers, by default that of all processes; collectives run in new
    groups of the same processes, so that they mix with none of the caller's. `traffic` counts what is sent.
    """

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
        self.tables, self.plan, self.rank = tuple(tables), plan, place.rank
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        own = dict(table_optimizers or {})
        names = [table.name for table in tables]
        for name in own:
            if name not in names:
                raise ConfigError(
                    f"table_optimizers names '{name}', which is no table; {nearest(name, names)}"
                )
        self.optimizers = [own.get(name, self.optimizer) for name in names]
        self.seed, self.stochastic_rounding, self.output_dtype = seed, stochastic_rounding, output_dtype
        self.num_steps = 0
        self.lr_factor = 1.0
        """Multiplies every optimizer's learning rate; a schedule sets it before each step."""
        self.exchange_layout = layout = ExchangeLayout(tables, plan)
        self.features, self.output_dim = layout.features, layout.output_dim
        self.traffic = Traffic()
        self._check = LookupCheck(tables)
        everyone = range(place.world_size)
        # A group of its own for ids: a pipeline exchanges those of the next batch while this one computes.
        index_group, vector_group = subgroup(group, everyone), subgroup(group, everyone)
        wide = any(table.rows > NARROW_ROWS for table in tables)
        self._indices = IndexExchange(
            *(layout, self.rank, index_group, self.traffic),
            wide_ids=wide,
            deduplicate=plan.exchange.deduplicate,
        )
        self._vectors = VectorExchange(layout, self.rank, vector_group, self.traffic, plan.exchange)
        optimizers = dict(zip(names, self.optimizers, strict=True))
        self._weight_gradients = WeightGradients(
            layout, self.rank, partial(self._vectors.mail, "gradients of sample weights")
        )
        self._local = LocalShards(
            *(layout, plan, self.rank, group, self._vectors, self.traffic, optimizers, seed),
            stochastic_rounding=stochastic_rounding,
        )
        self._replicated: ReplicatedTables | None = None
        self._take_replicated = Taking(layout.replicated_runs)
        if layout.replicated:
            self._replicated = ReplicatedTables(
                *(layout.replicated, self.features, optimizers, seed),
                stochastic_rounding=stochastic_rounding,
                group=vector_group,
                traffic=self.traffic,
            )
        self._sequence_names = [(table.name, feature) for table, feature in layout.sequences]
        self._sequences: Sequences | None = None
        if layout.sequences:
            local = LocalSequences(
                *(layout, plan, self.rank, self._vectors, optimizers, seed),
                stochastic_rounding=stochastic_rounding,
            )
            self._sequences = Sequences(layout, self.rank, plan.exchange, local, self._replicated)
        # Autograd calls backward only for outputs that depend on something which wants a gradient.
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim] of this rank's samples."""
        return self.lookup(values, offsets, sample_weights).pooled

    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of this rank's samples."""
        return self.finish_lookup(self.start_lookup(self.receive(self.send(values, offsets, sample_weights))))

    def send(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Sent:
        """Starts the exchange of a batch's ids and returns at once.

        Sample weights, and whether they want a gradient, must be given on all ranks or on none. What is
        looked up and updated until the backward pass is a copy, so the caller may reuse its memory at once.
        """
        # The weights stay in the graph, to which the lookup joins its gradient of them.
        indices = self._check.copied(values, offsets, sample_weights)
        with torch.no_grad():
            return self._indices.send(*indices)

    @torch.no_grad()
    def receive(self, sent: Sent) -> Received:
        """Waits for the ids that this worker looks up."""
        return self._indices.receive(sent)

    @torch.compiler.disable
    def start_lookup(self, received: Received) -> Looking:
        """Looks up, and sends vectors on their way; what is computed before `finish_lookup` overlaps.

        So it does in the backward pass, where gradients travel while the same is computed backwards.
        """
        anchor = self._anchor if torch.is_grad_enabled() else self._anchor.detach()
        flight = _Flight(received)
        return Looking(_Start.apply(anchor, self, flight, received.own.sample_weights), flight)

    @torch.compiler.disable
    def finish_lookup(self, looking: Looking) -> Lookup:
        """Waits for the vectors, pooled ones and sequences."""
        pooled, *sequences = _Finish.apply(looking.token, self, looking.flight)
        return Lookup(pooled, dict(zip(self._sequence_names, sequences, strict=True)))

    def checkpoint_tensors(self) -> dict[str, ShardedTable | Tensor]:
        """`weights/T`, `states/T/first` and `states/T/second` of every table; loading writes into them."""
        tensors: dict[str, ShardedTable | Tensor] = {}
        whole = {table.name for table in self.exchange_layout.replicated}
        for table, optimizer in zip(self.tables, self.optimizers, strict=True):
            if table.name in whole:
                assert self._replicated is not None
                collection = self._replicated.collection
                tensors[f"weights/{table.name}"] = collection.weight(table.name)
                for key, state in collection.state(table.name).items():
                    tensors[f"states/{table.name}/{key}"] = state
            elif table.pooling == "none":
                assert self._sequences is not None
                tensors |= self._sequences.local.checkpoint_tensors(table, optimizer)
            else:
                tensors |= self._local.checkpoint_tensors(table, optimizer)
        return tensors

    def _begin_reading(self, flight: _Flight) -> None:
        received, luggage = flight.received, None
        vectors = self._local.read(received)
        if self._sequences is not None:
            flight.sequences, luggage = self._sequences.start_reading(received)
        flight.vectors = self._vectors.start_forward(vectors, received.batches, luggage)
        if self._replicated is not None:
            flight.replicated = self._replicated.read(received.own)

    def _finish_reading(self, flight: _Flight) -> tuple[Tensor, ...]:
        received, divided = flight.received, self.exchange_layout.divided
        assert flight.vectors is not None
        pooled = self._vectors.finish_forward(flight.vectors, received.own.batch, flight.replicated)
        flight.vectors = flight.replicated = None
        if divided:
            flight.shares = shares(divided, received.own)
            scale_(pooled, divided, flight.shares)
        sequences: list[Tensor] = []
        if flight.sequences is not None:
            sequences, flight.sequences.outputs = flight.sequences.outputs, []
        return tuple(one.to(self.output_dtype) for one in (pooled, *sequences))

    def _begin_update(
        self, flight: _Flight, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        divided, luggage = self.exchange_layout.divided, None
        if pooled is None:
            gradient = torch.zeros(flight.received.own.batch, self.output_dim)
        else:
            gradient = pooled.float()
        if divided:
            gradient = gradient.clone()
            scale_(gradient, divided, flight.shares)
        if self._sequences is not None:
            assert flight.sequences is not None
            given = [None if one is None else one.float() for one in sequences]
            luggage = self._sequences.start_update(flight.sequences, given, pooled is not None)
        flight.gradients = self._vectors.start_backward(gradient, flight.received.batches, luggage)
        if self._replicated is not None:
            flight.replicated_gradient = self._take_replicated(gradient)

    def _finish_update(self, flight: _Flight, weighted: bool) -> Tensor | None:
        """Returns the gradient of the sample weights where it is wanted."""
        received, gradients = flight.received, None
        assert flight.gradients is not None
        self.num_steps += 1
        at = self.num_steps, self.lr_factor
        replicated = returning = None
        pooled = True
        if flight.sequences is not None:
            # Which outputs have a gradient is known when all ranks have said so.
            gradients = self._vectors.finish_backward(flight.gradients, received.batches)
            pooled = flight.sequences.wanted[0]
            weighted = weighted and pooled
        if self._replicated is not None:
            assert flight.replicated_gradient is not None
            if weighted:
                # Before updates: it is the rows as they were read that count.
                replicated = self._replicated.sample_weight_gradient(received.own, flight.replicated_gradient)
            self._update_replicated(flight, *at)
        if gradients is None:
            gradients = self._vectors.finish_backward(flight.gradients, received.batches)
        if pooled:
            gradient = self._local.gradient(received, gradients)
            if weighted:
                own = self._local.sample_weight_gradient(received, gradient)
                returning = self._weight_gradients.start(received, own)
            self._local.update(received, gradient, *at)
        if self._sequences is not None and flight.sequences is not None:
            self._sequences.update(flight.sequences, received, *at)
        flight.gradients = flight.replicated_gradient = flight.sequences = None
        if returning is None:
            return None
        return self._weight_gradients.finish(returning, received.own, replicated)

    def _update_replicated(self, flight: _Flight, num_steps: int, lr_factor: float) -> None:
        assert self._replicated is not None
        assert flight.replicated_gradient is not None
        arguments = flight.received.own, flight.replicated_gradient, num_steps, lr_factor
        if self._sequences is None or flight.sequences is None:
            self._replicated.update(*arguments)
        else:
            wanted = self._sequences.wanted_of_copies(flight.sequences)
            self._replicated.update(*arguments, flight.sequences.replicated, wanted)


class _Start(torch.autograd.Function):
    """The first half of a lookup; its backward pass, the last to run, waits for gradients and updates."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, emb: ShardedEmbeddingCollection, flight: _Flight, _: Tensor | None
    ) -> Tensor:
        ctx.emb, ctx.flight = emb, flight
        emb._begin_reading(flight)
        return torch.zeros((), device=anchor.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, None, None, ctx.emb._finish_update(ctx.flight, ctx.needs_input_grad[3])


class _Finish(torch.autograd.Function):
    """The second half of a lookup; its backward pass sends gradients on their way."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, emb: ShardedEmbeddingCollection, flight: _Flight) -> Any:
        ctx.emb, ctx.flight = emb, flight
        ctx.set_materialize_grads(False)
        return emb._finish_reading(flight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.emb._begin_update(ctx.flight, gradients[0], gradients[1:])
        return torch.zeros(()), None, None
