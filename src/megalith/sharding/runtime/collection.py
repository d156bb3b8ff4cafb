"""`ShardedEmbeddingCollection`: an `EmbeddingCollection` whose tables lie on many workers, as a plan says.

Training and users call it, on all ranks alike, also with an empty batch. It owns the communication of its
workers, the input distribution and the stages behind it (`lookup.py`). Gradients are summed over ranks, so a
loss divided by the global batch gives what one process with all samples would compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.comm.process_group import rank_in
from megalith.comm.ranks import Ranks
from megalith.comm.traffic import TrafficCounter
from megalith.core.errors import ConfigError, PlanError
from megalith.core.schema import TableSpec, check_tables
from megalith.embeddings.check import LookupCheck, event_times
from megalith.embeddings.collection import EmbeddingCollection, TellEvicted
from megalith.embeddings.descriptors import Lookup
from megalith.embeddings.module.description import describe, training_mode
from megalith.embeddings.module.every_step import refuse_all_rows
from megalith.embeddings.module.loss_scale import LossScale
from megalith.embeddings.module.refusals import refuse_transforms
from megalith.embeddings.module.table_module import TableModule
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad, optimizer_of_each
from megalith.embeddings.row_block import RowBlock
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.base import RowCache, StoreBytes, TierCounts
from megalith.embeddings.stores.choose import is_behind_cache
from megalith.embeddings.stores.dynamic.counts import DynamicCounts, added_by_table
from megalith.embeddings.stores.dynamic.settings import sized_table
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.table_state import TableState
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ShardingPlan, has_column_shards, read_plan
from megalith.sharding.row_wise_plan import row_wise_plan
from megalith.sharding.runtime.input_dist.input_dist import InputDist, PendingInput
from megalith.sharding.runtime.input_dist.jagged_ids import ReceivedIds
from megalith.sharding.runtime.local_shards import ResolvedShards
from megalith.sharding.runtime.lookup import FinishLookup, ShardedLookup, ShardedLookupContext, StartLookup
from megalith.sharding.runtime.shared_budget import SharedBudget
from megalith.sharding.wire_format import has_event_times, has_wide_ids


class PendingLookup(NamedTuple):
    """A lookup whose vectors are on their way."""

    token: Tensor
    """Joins the two halves in autograd."""
    context: ShardedLookupContext


class ResolvedBatch(NamedTuple):
    """A batch whose ids were exchanged, and whose rows are in memory until it is computed."""

    received: ReceivedIds
    rows: ResolvedShards

    def release(self) -> None:
        """Lets the rows leave."""
        self.rows.release()


class ShardedEmbeddingCollection(TableModule):
    """Embedding tables that lie on many processes, looked up and trained like one `EmbeddingCollection`.

    Each process gives the ids of its own samples and gets their vectors, wherever the rows lie; the backward
    pass updates every row that any process touched, once, in the process that holds it. For example, in
    `sharded.py`:

        import torch
        import torch.distributed as dist
        import megalith as mg

        dist.init_process_group("gloo")
        tables = [mg.TableSpec(name="t0", rows=1000, dim=8, features=("f0",))]
        emb = mg.ShardedEmbeddingCollection(tables, optimizer=mg.RowWiseAdaGrad(lr=0.01), seed=0)
        values, offsets = torch.tensor([3, 700, 999]), torch.tensor([0, 2, 3])
        vectors = emb(values, offsets)      # two samples, with the ids 3 and 700, and 999: [2, 8]
        vectors.sum().backward()            # rows are updated where they lie
        print(f"rank {dist.get_rank()}: {tuple(vectors.shape)}")
        dist.destroy_process_group()

    and on a command line:

        torchrun --nproc-per-node 2 sharded.py

    `plan` says which rows and columns of which table lie where: a `ShardingPlan`, or the path of a file that
    `megalith plan` wrote; without one every table is cut by rows into equal parts. `optimizer`, `seed`,
    `table_optimizers`, `stochastic_rounding` and `output_dtype` are those of `EmbeddingCollection`, and the
    same seed gives the same start values, however tables are cut.

    `group` is the group of the plan's workers, by default that of all processes; collectives run in new
    groups of the same processes, so that they mix with none of the caller's. `memory` is what the tiered
    tables of one process may take, `adaptive` the budget that adaptive ones share on all processes together.
    `traffic` counts what is sent.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        plan: ShardingPlan | Path | str | None = None,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        *,
        table_optimizers: Mapping[str, RowOptimizer] | None = None,
        stochastic_rounding: bool = True,
        output_dtype: torch.dtype = torch.float32,
        group: dist.ProcessGroup | None = None,
        memory: TieredMemory | None = None,
        adaptive: AdaptivePolicy | None = None,
    ) -> None:
        super().__init__(output_dtype)
        check_tables(tables)
        self.rank, world_size, _ = rank_in(group)
        self.event_time: int | Tensor | None = None
        """When the samples of this rank in the batch that comes happened, in seconds since 1970; ids may
        expire by it. One time for all, or int64 [batch]; now is the latest of all ranks. Set before each
        batch that trains, on all ranks, where tables expire by it; who calls `exchange` gives it there."""
        self._is_timed = has_event_times(tables)
        self._ranks = Ranks(group, self.rank, world_size)
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        of_each = optimizer_of_each(tables, self.optimizer, table_optimizers or {})
        optimizers = {table.name: own for table, own in zip(tables, of_each, strict=True)}
        for table, own in optimizers.items():
            if own.rows == "all":
                refuse_all_rows(table, "may lie on other processes")
        tables = [sized_table(table, optimizers[table.name]) for table in tables]
        self.tables = tuple(tables)
        self.plan = plan = _checked_plan(plan, tables, world_size)
        self.optimizers = list(optimizers.values())
        self.seed, self.stochastic_rounding = seed, stochastic_rounding
        self.num_steps = 0
        self.lr_factor = 1.0
        """Multiplies every optimizer's learning rate; a schedule sets it before each step."""
        self.loss_scale: LossScale = None
        """As that of `EmbeddingCollection`, on all ranks alike. Gradients are summed over ranks: where a loss
        is a mean over each rank's samples, the number of ranks is its scale."""
        self.num_skipped_steps = 0
        """Steps that all ranks skipped because a gradient of one was not finite."""
        self.exchange_layout = layout = ExchangeLayout(tables, plan)
        self.features, self.output_dim = layout.features, layout.output_dim
        self.traffic = TrafficCounter()
        self._check = LookupCheck(tables)
        self.comm = comm = CommContext.of(group, self.traffic)
        """How this worker reaches the others; None for one process."""
        # A branch of its own for ids: a pipeline exchanges those of the next batch while this one computes.
        ids = None if comm is None else comm.branch()
        self._input_dist = InputDist(
            *(layout, self.rank, ids),
            wide_ids=has_wide_ids(tables),
            deduplicate=plan.exchange.deduplicate,
        )
        self._budget = SharedBudget(tables, optimizers, adaptive, comm)
        self._lookup = ShardedLookup(
            *(layout, plan, self.rank, comm, optimizers, seed, memory, self._budget),
            stochastic_rounding=stochastic_rounding,
        )
        self._counts_ids = self.adaptive() is not None or any(table.is_dynamic for table in tables)
        self._sequence_names = [(table.name, feature) for table, feature in layout.sequences]

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim] of this rank's samples."""
        return self.lookup(values, offsets, sample_weights).pooled

    @torch.compiler.disable
    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of this rank's samples."""
        refuse_transforms()
        trains = self.steps_in_backward
        time = self.event_time if trains else None
        received = self.exchange(values, offsets, sample_weights, event_time=time)
        resolved = self.resolve(received, trains=trains)
        return self.finish_lookup(self.start_lookup(resolved))

    def exchange(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        *,
        event_time: int | Tensor | None = None,
    ) -> ReceivedIds:
        """Sends the ids of this rank's samples to the workers that hold their rows, and gets theirs."""
        return self.receive(self.send(values, offsets, sample_weights, event_time=event_time))

    def send(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None = None,
        *,
        event_time: int | Tensor | None = None,
    ) -> PendingInput:
        """Starts the exchange of a batch's ids and returns at once.

        Sample weights, and whether they want a gradient, must be given on all ranks or on none, and so must
        an `event_time` where ids expire by it. What is looked up and updated until the backward pass is a
        copy, so the caller may reuse its memory at once.
        """
        # The weights stay in the graph, to which the lookup joins its gradient of them.
        indices = self._check.copied(values, offsets, sample_weights)
        times = None
        if event_time is not None and self._is_timed:
            samples = (len(indices[1]) - 1) // len(self.features)
            times = event_times(event_time, samples)
        with torch.no_grad():
            return self._input_dist.send(*indices, times)

    @torch.no_grad()
    def receive(self, sent: PendingInput) -> ReceivedIds:
        """Waits for the ids that this worker looks up."""
        return self._input_dist.receive(sent)

    def expect(self, received: ReceivedIds, ahead: int) -> None:
        """Says which ids come, `ahead` batches after the last one that was resolved."""
        self._lookup.expect(received, ahead)

    def resolve(self, received: ReceivedIds, *, trains: bool, wait: bool = False) -> ResolvedBatch:
        """Brings the rows of this worker into memory, as `EmbeddingCollection.resolve` does."""
        return ResolvedBatch(received, self._lookup.resolve(received, trains=trains, wait=wait))

    @torch.compiler.disable
    def start_lookup(self, resolved: ResolvedBatch) -> PendingLookup:
        """Looks up, and sends vectors on their way; what is computed before `finish_lookup` overlaps.

        So it does in the backward pass, where gradients travel while the same is computed backwards.
        """
        self.check_recomputed(counts_ids=self._counts_ids)
        anchor = self.anchor if torch.is_grad_enabled() else self.anchor.detach()
        context = ShardedLookupContext(*resolved, trains=self.training)
        weights = resolved.received.own.sample_weights
        return PendingLookup(StartLookup.apply(anchor, self, self._lookup, context, weights), context)

    @torch.compiler.disable
    def finish_lookup(self, pending: PendingLookup) -> Lookup:
        """Waits for the vectors, pooled ones and sequences."""
        pooled, *sequences = FinishLookup.apply(pending.token, self, self._lookup, pending.context)
        if not torch.is_grad_enabled():
            pending.context.rows.release()
        return Lookup(pooled, dict(zip(self._sequence_names, sequences, strict=True)))

    @property
    def prepares_ahead(self) -> bool:
        """Ids of a coming batch are exchanged while this one computes."""
        return True

    def policy_state(self) -> dict[str, Any]:
        """What the next decisions on chunks depend on beside rows, on all ranks together."""
        return self._budget.state_dict()

    def load_policy_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `policy_state` gave, after `num_steps` and the rows were loaded."""
        self._budget.load_state_dict(state, self.num_steps)

    def adaptive(self) -> AdaptiveFigures | None:
        """What this worker's adaptive tables are now; None where no worker has any."""
        return self._budget.figures()

    def counts(self) -> TierCounts:
        """What the tiers of this worker's stores did so far."""
        return self._lookup.counts()

    def dynamic_counts(self) -> DynamicCounts | None:
        """What this worker's parts of dynamic tables did so far; None where no worker has any."""
        if not any(table.is_dynamic for table in self.tables):
            return None
        counts = [own.dynamic_counts() for own in self._lookup.local.collections()]
        return reduce(DynamicCounts.plus, filter(None, counts), DynamicCounts())

    def dynamic_counts_by_table(self) -> dict[str, DynamicCounts]:
        """The same of each dynamic table that this worker has a part of."""
        local = self._lookup.local.collections()
        return added_by_table(part for own in local for part in own.dynamic_counts_by_table().items())

    def on_evicted(self, tell: TellEvicted) -> None:
        """Has somebody told of ids that lose their row on this worker."""
        for own in self._lookup.local.collections():
            own.on_evicted(tell)

    def export_ids(self, table: str, max_bytes: int = 64 << 20) -> Iterator[RowBlock]:
        """The ids of a dynamic table that have a row on any worker; all workers iterate, and get them all."""
        own = [emb.export_ids(name, max_bytes) for emb, name in self._parts(table)]
        return self._ranks.items_of_each(itertools.chain(*own))

    def import_ids(self, table: str, blocks: Iterable[RowBlock]) -> int:
        """Takes ids as `EmbeddingCollection.import_ids` does: all workers give the same blocks, each takes
        what is its own. How many of them have a row then, on all workers together."""
        given, parts = list(blocks), self._parts(table)
        counts = self._ranks.from_each(lambda: sum(emb.import_ids(name, given) for emb, name in parts))
        return sum(counts)

    def _parts(self, table: str) -> list[tuple[EmbeddingCollection, str]]:
        found = [spec for spec in self.tables if spec.name == table and spec.is_dynamic]
        if not found:
            raise ConfigError(f"Table '{table}' is not dynamic; only dynamic ones import and export ids.")
        return self._lookup.local.parts_of(found[0])

    def bytes(self) -> StoreBytes:
        """What the tables of this worker take: in memory, and files."""
        return self._lookup.bytes()

    def caches(self) -> list[RowCache]:
        """This worker's caches of tables that are not whole in memory."""
        return self._lookup.caches()

    def table_states(self) -> dict[str, TableState]:
        """Every table as a checkpoint sees it; loading writes into the rows that this worker holds."""
        states: dict[str, TableState] = {}
        for table, optimizer in zip(self.tables, self.optimizers, strict=True):
            states |= self._lookup.table_states(table, optimizer)
        return states

    def get_extra_state(self) -> dict[str, Any]:
        """Refused: `state_dict()` of one process would hold a part of the tables, or none."""
        raise ConfigError(
            "state_dict() of one process does not hold tables that lie on many; save them by table_states() "
            "(megalith.checkpoint), and take state_dict() of the other modules."
        )

    def set_extra_state(self, _: dict[str, Any]) -> None:
        """Refused, as above."""
        self.get_extra_state()

    def __deepcopy__(self, _: dict[int, Any]) -> ShardedEmbeddingCollection:
        raise _not_copied()

    def __reduce__(self) -> tuple[Any, ...]:
        raise _not_copied()

    def extra_repr(self) -> str:
        """Every table, what those of this worker take, and what a backward pass does to them."""
        mode = training_mode(is_frozen=self.is_frozen, training=self.training, accumulate=False)
        ranks = f"rank {self.rank} of {self.plan.world_size}; {mode}"
        return describe(self.tables, self.optimizers, self.output_dtype, self.bytes(), ranks)


def _not_copied() -> ConfigError:
    return ConfigError(
        "Tables that lie on many processes are not copied by deepcopy or pickle; make another "
        "ShardedEmbeddingCollection on all ranks, and load a checkpoint into it."
    )


def _checked_plan(
    plan: ShardingPlan | Path | str | None, tables: Sequence[TableSpec], world_size: int
) -> ShardingPlan:
    if plan is None:
        return row_wise_plan(tables, world_size)
    if not isinstance(plan, ShardingPlan):
        plan = read_plan(Path(plan))
    plan.check(tables)
    cut = {placement.table for placement in plan.placements if has_column_shards(placement)}
    for table in tables:
        if table.name in cut and is_behind_cache(table):
            raise PlanError(
                f"Table '{table.name}' is tiered, and the plan cuts it by columns; cut it by rows, or not."
            )
    if world_size != plan.world_size:
        raise PlanError(
            f"The plan is for {plan.world_size} workers and there are {world_size}; regenerate it with "
            "`megalith plan`."
        )
    return plan
