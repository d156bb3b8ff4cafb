"""`ShardedLookup`: one lookup through the stages of the runtime, forward and backward.

`ShardedEmbeddingCollection` makes one and calls it from autograd; it owns every stage behind the input
distribution. Both passes are in two halves, so that what the caller computes in between overlaps with what
travels:

    start_forward     look up the local shards, send their vectors, look up replicated tables
    finish_forward    wait for the vectors and put the outputs of this rank's samples together
    start_backward    send the gradients of the outputs to the workers that hold the rows
    finish_backward   wait for the gradients and update the rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.comm.peer_lost import peer_errors
from megalith.core.schema import TableSpec
from megalith.embeddings.autograd import asks_for_step
from megalith.embeddings.module.loss_scale import LossScale, are_finite, unscaled
from megalith.embeddings.module.refusals import (
    refuse_double_backward,
    refuse_second_step,
    refuse_stale_rows,
)
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.row_block import part_specs
from megalith.embeddings.stores.base import RowCache, StoreBytes, TierCounts
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.table_state import TableState
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.input_dist.jagged_ids import ReceivedIds
from megalith.sharding.runtime.local_shards import LocalShards, ResolvedShards
from megalith.sharding.runtime.output_dist import OutputDist, PendingOutput, WorkerVectors
from megalith.sharding.runtime.pooled_columns import ColumnSplit, mean_factors, scale_means_
from megalith.sharding.runtime.replicated import ReplicatedTables
from megalith.sharding.runtime.sample_weight_gradients import SampleWeightGradients
from megalith.sharding.runtime.sequence_dist import SequenceContext, SequenceDist
from megalith.sharding.runtime.shared_budget import SharedBudget
from megalith.sharding.runtime.unknown_rows import UnknownRows


@dataclass
class ShardedLookupContext:
    """What the halves of a lookup, and of its backward pass, hand to each other."""

    received: ReceivedIds
    rows: ResolvedShards
    vectors: PendingOutput | None = None
    replicated: Tensor | None = None
    mean_factors: list[Tensor] = field(default_factory=list)
    sequences: SequenceContext | None = None
    gradients: PendingOutput | None = None
    replicated_gradient: Tensor | None = None
    trains: bool = True
    """Whether it was looked up to train; a backward pass may still not ask for a step."""
    num_steps: int = 0
    """That the tables had taken when it was looked up."""
    is_finite: bool = True
    """Whether the gradients of all ranks are; only known where losses are scaled."""
    is_done: bool = False
    """Whether the tables took their step."""


class ShardedLookup:
    """The stages behind the input distribution, on one worker; all workers call it alike."""

    def __init__(
        self,
        layout: ExchangeLayout,
        plan: ShardingPlan,
        rank: int,
        comm: CommContext | None,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        memory: TieredMemory | None,
        budget: SharedBudget,
        *,
        stochastic_rounding: bool,
    ) -> None:
        self._rank, self._layout, self._comm = rank, layout, comm
        self._vectors = OutputDist(layout, rank, comm, plan.exchange)
        self._weight_gradients = SampleWeightGradients(layout, rank, comm)
        self._budget = budget
        sequences = dict.fromkeys(table for table, _ in layout.sequences)
        self.local = LocalShards(
            *(layout, plan, rank, comm, optimizers, seed, memory, budget.budget),
            UnknownRows([*layout.pooled_tables, *sequences], plan, comm),
            stochastic_rounding=stochastic_rounding,
        )
        self._replicated: ReplicatedTables | None = None
        self._replicated_columns = ColumnSplit(layout.replicated_columns)
        if layout.replicated:
            self._replicated = ReplicatedTables(
                *(layout.replicated, layout.features, optimizers, seed),
                stochastic_rounding=stochastic_rounding,
                comm=comm,
            )
        self._sequences: SequenceDist | None = None
        if layout.sequences:
            self._sequences = SequenceDist(layout, rank, plan.exchange, self.local, self._replicated)

    def expect(self, received: ReceivedIds, ahead: int) -> None:
        """Says which ids come, `ahead` batches after the last one that was resolved."""
        self.local.expect(received, ahead)

    def resolve(self, received: ReceivedIds, *, trains: bool, wait: bool) -> ResolvedShards:
        """Brings the rows of this worker into memory."""
        return self.local.resolve(received, trains=trains, wait=wait)

    def counts(self) -> TierCounts:
        """What the tiers of this worker's stores did so far."""
        return self.local.counts()

    def bytes(self) -> StoreBytes:
        """What the tables of this worker take."""
        own = self.local.bytes()
        return own if self._replicated is None else own.plus(self._replicated.collection.stores.bytes())

    def caches(self) -> list[RowCache]:
        """This worker's caches over a disk."""
        return self.local.caches()

    def start_forward(self, context: ShardedLookupContext) -> None:
        """Looks up, and sends vectors on their way."""
        received, payload = context.received, None
        self.local.tell_times(received, context.rows)
        vectors = self.local.read_pooled(received, context.rows)
        if self._sequences is not None:
            context.sequences, payload = self._sequences.start_forward(received, context.rows)
        context.vectors = self._vectors.start_forward(vectors, received.batches, payload)
        if self._replicated is not None:
            context.replicated = self._replicated.read(received.own)

    def finish_forward(self, context: ShardedLookupContext) -> list[Tensor]:
        """Waits; the pooled vectors of this rank's samples, then its sequences."""
        received, mean_outputs = context.received, self._layout.mean_outputs
        assert context.vectors is not None
        pooled = self._vectors.finish_forward(context.vectors, received.own.batch, context.replicated)
        context.vectors = context.replicated = None
        if mean_outputs:
            context.mean_factors = mean_factors(mean_outputs, received.own)
            scale_means_(pooled, mean_outputs, context.mean_factors)
        sequences: list[Tensor] = []
        if context.sequences is not None:
            sequences, context.sequences.outputs = context.sequences.outputs, []
        return [pooled, *sequences]

    def start_backward(
        self,
        context: ShardedLookupContext,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
        loss_scale: LossScale = None,
    ) -> None:
        """Sends gradients on their way; None for an output that this rank's loss does not depend on."""
        mean_outputs, payload = self._layout.mean_outputs, None
        if loss_scale is not None:
            gradients = unscaled(loss_scale, pooled, sequences)
            pooled, sequences = gradients
            context.is_finite = self._are_all(are_finite(gradients))
        if pooled is None:
            gradient = torch.zeros(context.received.own.batch, self._layout.output_dim)
        else:
            gradient = pooled.float()
        if mean_outputs:
            gradient = gradient.clone()
            scale_means_(gradient, mean_outputs, context.mean_factors)
        if self._sequences is not None:
            assert context.sequences is not None
            given = [None if part is None else part.float() for part in sequences]
            payload = self._sequences.start_backward(context.sequences, given, pooled is not None)
        context.gradients = self._vectors.start_backward(gradient, context.received.batches, payload)
        if self._replicated is not None:
            context.replicated_gradient = self._replicated_columns(gradient)

    def finish_backward(
        self, context: ShardedLookupContext, num_steps: int, lr_factor: float, *, weighted: bool, steps: bool
    ) -> Tensor | None:
        """Waits, and takes step number `num_steps` on all rows that any rank touched, if it `steps`.

        `weighted` says whether the sample weights want a gradient, which is then returned.
        """
        received, gradients = context.received, None
        step = num_steps, lr_factor
        replicated = pending = None
        pooled = True
        if context.sequences is not None:
            # Which outputs have a gradient is known when all ranks have said so.
            gradients = self._finish_gradients(context)
            pooled = context.sequences.wanted[0]
            weighted = weighted and pooled
        if self._replicated is not None:
            assert context.replicated_gradient is not None
            if weighted:
                # Before updates: it is the rows as they were read that count.
                replicated = self._replicated.sample_weight_gradient(
                    received.own, context.replicated_gradient
                )
            if steps:
                self._update_replicated(self._replicated, context, *step)
        if gradients is None:
            gradients = self._finish_gradients(context)
        if pooled:
            gradient = self.local.pooled_gradient(received, gradients)
            if weighted:
                own = self.local.sample_weight_gradient(context.rows, gradient)
                pending = self._weight_gradients.start(received, own)
            if steps:
                self.local.update_pooled(context.rows, gradient, *step)
        if steps:
            if self._sequences is not None and context.sequences is not None:
                self._sequences.update(context.sequences, context.rows, *step)
            self.local.update_unknown()
            context.rows.release()
            self._budget.after_step(num_steps)
            context.sequences = None
        context.gradients = context.replicated_gradient = None
        if pending is None:
            return None
        return self._weight_gradients.finish(pending, received.own, replicated)

    def table_states(self, table: TableSpec, optimizer: RowOptimizer) -> dict[str, TableState]:
        """A table as a checkpoint sees it, and other state of its store: what this worker holds of it."""
        if self._replicated is None or table not in self._layout.replicated:
            return self.local.table_states(table, optimizer)
        # All workers hold the same rows; the first writes them.
        shard = self._replicated.collection.shard(table.name, writes=self._rank == 0)
        return {table.name: TableState(table.rows, table.dim, part_specs(table, optimizer), (shard,))}

    def _are_all(self, own: bool) -> bool:
        """Whether it is so on all ranks."""
        if self._comm is None:
            return own
        flag = torch.tensor(int(own))
        with peer_errors():
            dist.all_reduce(flag, dist.ReduceOp.MIN, self._comm.group)
        return bool(flag)

    def _finish_gradients(self, context: ShardedLookupContext) -> WorkerVectors:
        assert context.gradients is not None
        return self._vectors.finish_backward(context.gradients, context.received.batches)

    def _update_replicated(
        self, tables: ReplicatedTables, context: ShardedLookupContext, num_steps: int, lr_factor: float
    ) -> None:
        assert context.replicated_gradient is not None
        arguments = context.received.own, context.replicated_gradient, num_steps, lr_factor
        if self._sequences is None or context.sequences is None:
            tables.update(*arguments)
        else:
            wanted = self._sequences.wanted_of_replicated(context.sequences)
            tables.update(*arguments, context.sequences.replicated, wanted)


class LookupSettings(Protocol):
    """What the functions below ask of a `ShardedEmbeddingCollection`."""

    tables: tuple[TableSpec, ...]
    num_steps: int
    num_skipped_steps: int
    lr_factor: float
    loss_scale: LossScale
    output_dtype: torch.dtype

    @property
    def is_frozen(self) -> bool:
        """Whether no step is to be taken."""


class StartLookup(torch.autograd.Function):
    """The first half of a lookup; its backward pass, the last to run, waits for gradients and updates."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        emb: LookupSettings,
        lookup: ShardedLookup,
        context: ShardedLookupContext,
        _: Tensor | None,
    ) -> Tensor:
        """Looks up and sends vectors; the sample weights only join the graph."""
        ctx.emb, ctx.lookup, ctx.context = emb, lookup, context
        context.num_steps = emb.num_steps
        lookup.start_forward(context)
        return torch.zeros((), device=anchor.device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Updates the rows; the gradient of the sample weights where it is wanted."""
        emb: LookupSettings = ctx.emb
        context: ShardedLookupContext = ctx.context
        steps = context.trains and not emb.is_frozen and asks_for_step(ctx)
        if steps and context.is_finite:
            emb.num_steps += 1
        weights = ctx.lookup.finish_backward(
            *(context, emb.num_steps, emb.lr_factor),
            weighted=ctx.needs_input_grad[4],
            steps=steps and context.is_finite,
        )
        if steps and not context.is_finite:
            emb.num_skipped_steps += 1
            context.rows.release()
        context.is_done = steps
        return None, None, None, None, weights


class FinishLookup(torch.autograd.Function):
    """The second half of a lookup; its backward pass sends gradients on their way."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, emb: LookupSettings, lookup: ShardedLookup, context: ShardedLookupContext
    ) -> Any:
        """Waits for the vectors."""
        ctx.emb, ctx.lookup, ctx.context = emb, lookup, context
        ctx.set_materialize_grads(False)
        return tuple(output.to(emb.output_dtype) for output in lookup.finish_forward(context))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Sends the gradients of this rank's outputs."""
        emb: LookupSettings = ctx.emb
        refuse_double_backward()
        if ctx.context.is_done:
            refuse_second_step(accumulates=False)
        if emb.num_steps != ctx.context.num_steps:
            weights = ctx.context.received.own.sample_weights
            refuse_stale_rows(emb.tables, weighted=weights is not None and weights.requires_grad)
        ctx.lookup.start_backward(ctx.context, gradients[0], gradients[1:], emb.loss_scale)
        return torch.zeros(()), None, None, None
