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
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megalith.comm.context import CommContext
from megalith.comm.process_group import rank_in
from megalith.comm.traffic import TrafficCounter
from megalith.core.errors import ConfigError, PlanError, nearest
from megalith.core.schema import TableSpec, check_tables
from megalith.embeddings.check import LookupCheck
from megalith.embeddings.collection import Lookup
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.embeddings.table_state import TableShard, TableState, part_specs
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.input_dist.input_dist import InputDist, PendingInput, Received
from megalith.sharding.runtime.local_shards import LocalShards
from megalith.sharding.runtime.mean_outputs import scale_, shares
from megalith.sharding.runtime.output_dist import OutputDist, PendingOutput
from megalith.sharding.runtime.pooled_columns import ColumnSplit
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.runtime.sample_weight_gradients import SampleWeightGradients
from megalith.sharding.runtime.sequence_dist import SequenceContext, SequenceDist
from megalith.sharding.wire_format import has_wide_ids


class PendingLookup(NamedTuple):
    """A lookup whose vectors are on their way."""

    token: Tensor
    """Joins the two halves in autograd."""
    context: _LookupContext


class _LookupContext:
    """What the halves of a lookup, and of its backward pass, hand to each other."""

    def __init__(self, received: Received) -> None:
        self.received = received
        self.vectors: PendingOutput | None = None
        self.replicated: Tensor | None = None
        self.shares: list[Tensor] = []
        self.sequences: SequenceContext | None = None
        self.gradients: PendingOutput | None = None
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
        rank, world_size, _ = rank_in(group)
        if world_size != plan.world_size:
            raise PlanError(
                f"The plan is for {plan.world_size} workers and there are {world_size}; make it again "
                "with `megalith plan`."
            )
        self.tables, self.plan, self.rank = tuple(tables), plan, rank
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
        self.traffic = TrafficCounter()
        self._check = LookupCheck(tables)
        self.comm = comm = CommContext.of(group, self.traffic)
        """How this worker reaches the others; None for one process."""
        # A branch of its own for ids: a pipeline exchanges those of the next batch while this one computes.
        ids = None if comm is None else comm.branch()
        self._indices = InputDist(
            *(layout, self.rank, ids),
            wide_ids=has_wide_ids(tables),
            deduplicate=plan.exchange.deduplicate,
        )
        self._vectors = OutputDist(layout, self.rank, comm, plan.exchange)
        optimizers = dict(zip(names, self.optimizers, strict=True))
        self._weight_gradients = SampleWeightGradients(layout, self.rank, comm)
        self._local = LocalShards(
            *(layout, plan, self.rank, comm, optimizers, seed),
            stochastic_rounding=stochastic_rounding,
        )
        self._replicated: ReplicatedTables | None = None
        self._take_replicated = ColumnSplit(layout.replicated_columns)
        if layout.replicated:
            self._replicated = ReplicatedTables(
                *(layout.replicated, self.features, optimizers, seed),
                stochastic_rounding=stochastic_rounding,
                comm=comm,
            )
        self._sequence_names = [(table.name, feature) for table, feature in layout.sequences]
        self._sequences: SequenceDist | None = None
        if layout.sequences:
            self._sequences = SequenceDist(layout, self.rank, plan.exchange, self._local, self._replicated)
        # Autograd calls backward only for outputs that depend on something which wants a gradient.
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim] of this rank's samples."""
        return self.lookup(values, offsets, sample_weights).pooled

    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of this rank's samples."""
        return self.finish_lookup(self.start_lookup(self.receive(self.send(values, offsets, sample_weights))))

    def send(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> PendingInput:
        """Starts the exchange of a batch's ids and returns at once.

        Sample weights, and whether they want a gradient, must be given on all ranks or on none. What is
        looked up and updated until the backward pass is a copy, so the caller may reuse its memory at once.
        """
        # The weights stay in the graph, to which the lookup joins its gradient of them.
        indices = self._check.copied(values, offsets, sample_weights)
        with torch.no_grad():
            return self._indices.send(*indices)

    @torch.no_grad()
    def receive(self, sent: PendingInput) -> Received:
        """Waits for the ids that this worker looks up."""
        return self._indices.receive(sent)

    @torch.compiler.disable
    def start_lookup(self, received: Received) -> PendingLookup:
        """Looks up, and sends vectors on their way; what is computed before `finish_lookup` overlaps.

        So it does in the backward pass, where gradients travel while the same is computed backwards.
        """
        anchor = self._anchor if torch.is_grad_enabled() else self._anchor.detach()
        context = _LookupContext(received)
        return PendingLookup(_Start.apply(anchor, self, context, received.own.sample_weights), context)

    @torch.compiler.disable
    def finish_lookup(self, pending: PendingLookup) -> Lookup:
        """Waits for the vectors, pooled ones and sequences."""
        pooled, *sequences = _Finish.apply(pending.token, self, pending.context)
        return Lookup(pooled, dict(zip(self._sequence_names, sequences, strict=True)))

    def table_states(self) -> dict[str, TableState]:
        """Every table as a checkpoint sees it; loading writes into the rows that this worker holds."""
        states: dict[str, TableState] = {}
        whole = {table.name for table in self.exchange_layout.replicated}
        for table, optimizer in zip(self.tables, self.optimizers, strict=True):
            if table.name in whole:
                assert self._replicated is not None
                # All workers hold the same rows; the first writes them.
                parts = self._replicated.collection.table_parts(table.name)
                shard = TableShard(0, 0, parts, writes=self.rank == 0)
                states[table.name] = TableState(table.rows, table.dim, part_specs(table, optimizer), (shard,))
            else:
                states[table.name] = self._local.table_state(table, optimizer)
        return states

    def _begin_reading(self, context: _LookupContext) -> None:
        received, payload = context.received, None
        vectors = self._local.read_pooled(received)
        if self._sequences is not None:
            context.sequences, payload = self._sequences.start_reading(received)
        context.vectors = self._vectors.start_forward(vectors, received.batches, payload)
        if self._replicated is not None:
            context.replicated = self._replicated.read(received.own)

    def _finish_reading(self, context: _LookupContext) -> tuple[Tensor, ...]:
        received, mean_outputs = context.received, self.exchange_layout.mean_outputs
        assert context.vectors is not None
        pooled = self._vectors.finish_forward(context.vectors, received.own.batch, context.replicated)
        context.vectors = context.replicated = None
        if mean_outputs:
            context.shares = shares(mean_outputs, received.own)
            scale_(pooled, mean_outputs, context.shares)
        sequences: list[Tensor] = []
        if context.sequences is not None:
            sequences, context.sequences.outputs = context.sequences.outputs, []
        return tuple(one.to(self.output_dtype) for one in (pooled, *sequences))

    def _begin_update(
        self, context: _LookupContext, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        mean_outputs, payload = self.exchange_layout.mean_outputs, None
        if pooled is None:
            gradient = torch.zeros(context.received.own.batch, self.output_dim)
        else:
            gradient = pooled.float()
        if mean_outputs:
            gradient = gradient.clone()
            scale_(gradient, mean_outputs, context.shares)
        if self._sequences is not None:
            assert context.sequences is not None
            given = [None if one is None else one.float() for one in sequences]
            payload = self._sequences.start_update(context.sequences, given, pooled is not None)
        context.gradients = self._vectors.start_backward(gradient, context.received.batches, payload)
        if self._replicated is not None:
            context.replicated_gradient = self._take_replicated(gradient)

    def _finish_update(self, context: _LookupContext, weighted: bool) -> Tensor | None:
        """Returns the gradient of the sample weights where it is wanted."""
        received, gradients = context.received, None
        assert context.gradients is not None
        self.num_steps += 1
        at = self.num_steps, self.lr_factor
        replicated = returning = None
        pooled = True
        if context.sequences is not None:
            # Which outputs have a gradient is known when all ranks have said so.
            gradients = self._vectors.finish_backward(context.gradients, received.batches)
            pooled = context.sequences.wanted[0]
            weighted = weighted and pooled
        if self._replicated is not None:
            assert context.replicated_gradient is not None
            if weighted:
                # Before updates: it is the rows as they were read that count.
                replicated = self._replicated.sample_weight_gradient(
                    received.own, context.replicated_gradient
                )
            self._update_replicated(context, *at)
        if gradients is None:
            gradients = self._vectors.finish_backward(context.gradients, received.batches)
        if pooled:
            gradient = self._local.pooled_gradient(received, gradients)
            if weighted:
                own = self._local.sample_weight_gradient(received, gradient)
                returning = self._weight_gradients.start(received, own)
            self._local.update_pooled(received, gradient, *at)
        if self._sequences is not None and context.sequences is not None:
            self._sequences.update(context.sequences, received, *at)
        context.gradients = context.replicated_gradient = context.sequences = None
        if returning is None:
            return None
        return self._weight_gradients.finish(returning, received.own, replicated)

    def _update_replicated(self, context: _LookupContext, num_steps: int, lr_factor: float) -> None:
        assert self._replicated is not None
        assert context.replicated_gradient is not None
        arguments = context.received.own, context.replicated_gradient, num_steps, lr_factor
        if self._sequences is None or context.sequences is None:
            self._replicated.update(*arguments)
        else:
            wanted = self._sequences.wanted_of_copies(context.sequences)
            self._replicated.update(*arguments, context.sequences.replicated, wanted)


class _Start(torch.autograd.Function):
    """The first half of a lookup; its backward pass, the last to run, waits for gradients and updates."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, emb: ShardedEmbeddingCollection, context: _LookupContext, _: Tensor | None
    ) -> Tensor:
        ctx.emb, ctx.context = emb, context
        emb._begin_reading(context)
        return torch.zeros((), device=anchor.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, None, None, ctx.emb._finish_update(ctx.context, ctx.needs_input_grad[3])


class _Finish(torch.autograd.Function):
    """The second half of a lookup; its backward pass sends gradients on their way."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, emb: ShardedEmbeddingCollection, context: _LookupContext) -> Any:
        ctx.emb, ctx.context = emb, context
        ctx.set_materialize_grads(False)
        return emb._finish_reading(context)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.emb._begin_update(ctx.context, gradients[0], gradients[1:])
        return torch.zeros(()), None, None
