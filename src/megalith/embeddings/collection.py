"""`EmbeddingCollection`: many tables looked up in one call, updated in the backward pass.

    emb = EmbeddingCollection(tables, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # [batch, sum of dims]
    out.backward(gradient)          # every touched row is updated exactly once

Rows are neither parameters nor buffers: no dense optimizer, and no gradient tensor, ever sees them. What
torch's own habits do to them is in `module/`, and in docs/guides/in-your-own-loop.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec, check_tables
from megalith.core.spans import span
from megalith.embeddings.autograd import LookupFunction
from megalith.embeddings.check import Indices, LookupCheck
from megalith.embeddings.descriptors import Lookup, PendingTables
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.module.copies import copy_of, reduced
from megalith.embeddings.module.description import describe, training_mode
from megalith.embeddings.module.every_step import EveryStepRows
from megalith.embeddings.module.refusals import refuse_transforms
from megalith.embeddings.module.state import collection_state, load_collection_state
from megalith.embeddings.module.stepping import SteppingTables
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad, StepSettings, optimizer_of_each
from megalith.embeddings.rounding import RoundingSeeds
from megalith.embeddings.row_block import RowBlock
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.base import RowCache, StoreBytes, StoredTable, TierCounts
from megalith.embeddings.stores.dynamic.counts import DynamicCounts, added_by_table
from megalith.embeddings.stores.dynamic.id_vectors import export_ids, import_ids
from megalith.embeddings.stores.dynamic.settings import sized_table
from megalith.embeddings.stores.dynamic.store import DynamicStore
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.stores.table_stores import TableStores
from megalith.embeddings.table_state import TableShard, TableState, rows_state
from megalith.ops.embedding.descriptors import OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.embedding.operators import embedding_forward, embedding_sequence, sample_weight_gradient
from megalith.ops.ids.changes import EvictedIds
from megalith.ops.optimizer.backward import embedding_backward_
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.steps import PhysicalRows

_BLOCK_BYTES = 64 << 20
TellEvicted = Callable[[int, list[str], EvictedIds], None]
"""Is told the batch, the names of tables, and ids that lost their row."""


class EmbeddingCollection(SteppingTables):
    """Embedding tables over one list of features.

    `values` and `offsets` are feature-major in the order of `features`: every feature once, as the tables
    first name it. Start values depend on the seed and the table's name alone.

    `table_optimizers` gives single tables an optimizer of their own. `stochastic_rounding` rounds updated
    half-precision weights at random, reproducibly from the seed, so that small steps are not lost. `windows`
    names the tables that are parts of larger ones. `memory` says how much memory tables with
    `store="tiered"` may take, and where the rest of their rows lies. `adaptive` is the budget that tables
    with `store="adaptive"` share, and how it is shared. With `accumulate` backward passes only collect
    gradients, and `step()` takes one step for all of them. In a group of processes it trains only where it is
    `independent`: tables of which each process has its own.

    Models call `lookup`; a pipeline calls its parts, `exchange`, `resolve`, `start_lookup` and
    `finish_lookup`, the first two some batches ahead. Autograd calls `read`, `sample_weight_gradient` and
    `update`. The collection owns the rows of its tables and their optimizer state, in its `stores`.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        *,
        table_optimizers: Mapping[str, RowOptimizer] | None = None,
        stochastic_rounding: bool = True,
        output_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        windows: Mapping[str, TableWindow] | None = None,
        memory: TieredMemory | None = None,
        adaptive: AdaptivePolicy | AdaptiveBudget | None = None,
        accumulate: bool = False,
        independent: bool = False,
    ) -> None:
        arguments = {name: given for name, given in locals().items() if name not in ("self", "__class__")}
        super().__init__(output_dtype, device, accumulate=accumulate, independent=independent)
        check_tables(tables)
        self._arguments = arguments | {"tables": tuple(tables)}
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        self.optimizers = optimizer_of_each(tables, self.optimizer, table_optimizers or {})
        tables = [sized_table(*each) for each in zip(tables, self.optimizers, strict=True)]
        self.tables = tuple(tables)
        self.seed, self.stochastic_rounding = seed, stochastic_rounding
        self.lr_factor = 1.0
        """Multiplies every optimizer's learning rate; a schedule sets it before each step."""
        self.num_steps = 0
        self.event_time: int | Tensor | None = None
        """When the samples of the batch that comes happened, in seconds since 1970; ids may expire by it. One
        time for all, or int64 [batch]: an id has the latest of the samples that use it, and now is the latest
        of all. Set before each batch that trains, where tables expire by it."""
        of_each = [(windows or {}).get(table.name) or TableWindow.whole(table) for table in tables]
        self._check = LookupCheck(tables, device)
        stored = [StoredTable(*each) for each in zip(tables, of_each, self.optimizers, strict=True)]
        # What holds the rows of a table, and which row an id has, is decided there and nowhere else.
        self.stores = TableStores(stored, seed, device, memory, adaptive)
        self.lookups = self.stores.lookups
        """The lookups as the operators are told of them."""
        self.features = self.lookups.features
        rows = self.stores.rows
        self._weights = [each.weight for each in rows]
        self._states = [each.first for each in rows], [each.second for each in rows]
        self._native: NativeTables | None = None
        if torch.device(device).type == "cpu":
            self._native = NativeTables(
                self._weights, *self._states, [each.ids for each in rows], self.stores.pools
            )
        self._settings = StepSettings(self.optimizers)
        self._rounding = RoundingSeeds(of_each, seed, device)
        self._positions = {table.name: position for position, table in enumerate(tables)}
        self._every_step = EveryStepRows(stored, rows, self.stores.is_whole)

    @property
    def prepares_ahead(self) -> bool:
        """Whether there is something to gain from resolving batches ahead."""
        return not self.stores.ids_are_slots

    @property
    def output_dim(self) -> int:
        """Columns of the pooled output."""
        return self.lookups.output_dim

    def weight(self, table: str) -> Tensor:
        """The stored rows of a dense table, [rows, dim]; changes as training goes on."""
        return self._in_memory(table).weight

    def state(self, table: str) -> dict[str, Tensor]:
        """The optimizer state of a dense table: `first` and `second`, where its optimizer has them."""
        rows = self._in_memory(table)
        both = {"first": rows.first, "second": rows.second}
        return {name: tensor for name, tensor in both.items() if tensor.numel()}

    def is_whole(self, table: str) -> bool:
        """Whether every row of a table is in memory, in the order of ids."""
        return self.stores.is_whole(self._positions[table])

    def shard(self, table: str, *, writes: bool = True) -> TableShard:
        """The rows of a table as a checkpoint sees them; `writes` is false of all copies but one."""
        self._every_step.settle(self.num_steps)
        return self.stores.shard(self._positions[table], writes)

    def table_states(self) -> dict[str, TableState]:
        """Every table as a checkpoint sees it; loading writes into the rows."""
        states: dict[str, TableState] = {}
        for number, table in enumerate(self.tables):
            states |= {f"{table.name}.{name}": own for name, own in self.stores.states(number).items()}
            states[table.name] = rows_state(table, self.shard(table.name))
        return states

    def export_ids(self, table: str, max_bytes: int = _BLOCK_BYTES) -> Iterator[RowBlock]:
        """The ids of a dynamic table that have a row, with `weight` and `score`, uses as they count now."""
        return export_ids(*self._dynamic(table), max_bytes)

    def import_ids(self, table: str, blocks: Iterable[RowBlock]) -> int:
        """Takes ids with `weight` and perhaps `score` and optimizer state; how many of them have a row then.

        Where there is no room the best stay by the table's policy, of ids that were there and of new ones.
        """
        return import_ids(*self._dynamic(table), blocks)

    def _dynamic(self, table: str) -> tuple[DynamicStore, int]:
        place = self.stores.dynamic_place(self._positions[table]) if table in self._positions else None
        if place is None:
            raise ConfigError(f"Table '{table}' is not dynamic; only dynamic ones import and export ids.")
        return place

    def _in_memory(self, table: str) -> PhysicalRows:
        if not self.is_whole(table):
            raise ConfigError(
                f"Table '{table}' is not whole in memory; read it by `table_states()['{table}'].blocks(...)`."
            )
        self._every_step.settle(self.num_steps)
        return self.stores.rows[self._positions[table]]

    def policy_state(self) -> dict[str, Any]:
        """What the next decisions on chunks depend on beside rows; empty where no table is adaptive."""
        return {} if self.stores.budget is None else self.stores.budget.state_dict()

    def load_policy_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `policy_state` gave, after `num_steps` and the rows were loaded."""
        if self.stores.budget is not None:
            self.stores.budget.load_state_dict(state, self.num_steps)

    def counts(self) -> TierCounts:
        """What the tiers of the tables' stores did so far."""
        return self.stores.counts()

    def dynamic_counts(self) -> DynamicCounts | None:
        """What dynamic tables did so far; None where there are none."""
        counts = [store.dynamic_counts() for store in self.stores.dynamic]
        return reduce(DynamicCounts.plus, counts) if counts else None

    def on_evicted(self, tell: TellEvicted) -> None:
        """Has somebody told of ids of dynamic tables that lose their row."""
        for store in self.stores.dynamic:
            names = store.names
            store.on_evicted = lambda batch, evicted, names=names: tell(batch, names, evicted)

    def dynamic_counts_by_table(self) -> dict[str, DynamicCounts]:
        """The same of each dynamic table."""
        return added_by_table(own for store in self.stores.dynamic for own in store.counts_by_table().items())

    def bytes(self) -> StoreBytes:
        """What the tables take: weights, state, index and bookkeeping in memory, and files."""
        return self.stores.bytes()

    def adaptive(self) -> AdaptiveFigures | None:
        """What adaptive tables are now; None where there are none."""
        return None if self.stores.budget is None else self.stores.budget.figures()

    def caches(self) -> list[RowCache]:
        """The caches of tables that are not whole in memory."""
        return self.stores.caches()

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim]; `sample_weights` holds a factor for each value."""
        return self.lookup(values, offsets, sample_weights).pooled

    @torch.compiler.disable
    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of one batch."""
        refuse_transforms()
        if self._copied is not None:
            self.check_copy()
        if torch.is_grad_enabled():
            indices = self.exchange(values, offsets, sample_weights)
        else:
            offsets = offsets.contiguous()
            if sample_weights is not None:
                sample_weights = sample_weights.float().contiguous()
            self._check(values, offsets, sample_weights)
            indices = values, offsets, sample_weights
        return self.finish_lookup(self.start_lookup(self.resolve(indices, trains=self.steps_in_backward)))

    def exchange(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Indices:
        """The ids of a batch, checked, in memory of their own; where tables lie on many ranks, exchanged.

        The backward pass comes back to them, and nobody may have changed them in the meantime.
        """
        return self._check.copied(values, offsets, sample_weights)

    def expect(self, indices: Indices, ahead: int) -> None:
        """Says which ids come, `ahead` batches after the last one that was resolved."""
        self.stores.expect(indices, ahead)

    def resolve(self, indices: Indices, *, trains: bool, wait: bool = False) -> ResolvedIds:
        """Brings the rows of a batch into memory, where they stay until it is computed.

        It may run some batches ahead, in another thread, which `wait`s where rows of batches that are not yet
        computed leave no room. `trains` says that a backward pass will follow.
        """
        return self.stores.resolve(indices, trains=trains, wait=wait)

    @torch.compiler.disable
    def start_lookup(self, resolved: ResolvedIds) -> PendingTables:
        """Looks up a batch that was resolved."""
        self.check_training()
        if torch.is_grad_enabled():
            _, _, sample_weights = resolved.given
            if self.steps_in_backward:
                self.stores.tell_time(self.event_time, resolved)
            return PendingTables(LookupFunction.apply(self.anchor, self, resolved, sample_weights))
        outputs = self.read(resolved)
        resolved.release()
        return PendingTables(outputs)

    def finish_lookup(self, pending: PendingTables) -> Lookup:
        """Pooled vectors and sequences."""
        pooled, *sequences = pending.outputs
        names = [(table.name, feature) for _, table, feature in self.lookups.sequences]
        return Lookup(pooled, dict(zip(names, sequences, strict=True)))

    def read(self, resolved: ResolvedIds) -> tuple[Tensor, ...]:
        """The forward pass: pooled columns, then one sequence for each feature of a table without pooling."""
        with span("look up rows"):
            return self._read(resolved)

    def _read(self, resolved: ResolvedIds) -> tuple[Tensor, ...]:
        lookups, batch = self.lookups, resolved.batch
        self._every_step.catch_up(self.num_steps, lookups.descriptors, batch)
        pooled_descriptors, output = lookups.pooled_descriptors, (self.output_dim, self.output_dtype)
        wanted = [(number, table.dim, self.output_dtype) for number, table, _ in lookups.sequences]
        if self._native is not None:
            pooled = self._native.forward(pooled_descriptors, batch, *output)
            return pooled, *(
                self._native.sequence(lookups.descriptors, batch, *sequence) for sequence in wanted
            )
        weights = self._weights
        pooled = embedding_forward(weights, pooled_descriptors, *batch, *output)
        return pooled, *(
            embedding_sequence(weights, lookups.descriptors, *batch, *sequence) for sequence in wanted
        )

    def update(
        self,
        resolved: ResolvedIds,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
        descriptors: Tensor | None = None,
    ) -> None:
        """The backward pass: gradients of outputs in, one optimizer step on the touched rows out.

        `descriptors`, some of `lookups`, leaves all other lookups, and the tables of only these, as they are.
        Where there is not enough memory nothing is changed, and the error says so.
        """
        with span("update rows"):
            self._update(resolved, OutputGradients(pooled, sequences), descriptors)

    def _update(self, resolved: ResolvedIds, gradients: OutputGradients, descriptors: Tensor | None) -> None:
        chosen = self.lookups.descriptors if descriptors is None else descriptors
        batch = resolved.batch
        # Another batch may have taken a step since this one was read.
        self._every_step.catch_up(self.num_steps, chosen, batch)
        self.stores.updating(resolved)
        self.num_steps += 1
        try:
            if self._native is not None:
                chunked = self.stores.chunk_steps(resolved, self.num_steps)
                self._native.backward_(self.steps(), chosen, batch, gradients, self.rounding(), chunked)
            else:
                tables = self._weights, *self._states
                embedding_backward_(*tables, self.steps(), chosen, *batch, *gradients, self.rounding())
        except Exception:
            # A step that failed does not count.
            self.num_steps -= 1
            raise
        self.stores.updated(resolved, self.num_steps)
        self._every_step.took_step(self.steps, self.rounding, chosen, batch, gradients)

    def column_sharded_update(
        self, positions: Sequence[int], columns: Sequence[int], sections: Sequence[tuple[int, int, int]]
    ) -> ColumnShardedUpdate:
        """Updates of some tables in two halves, for those that have only some `columns` of their rows."""
        descriptors = self.lookups.descriptors
        chosen = descriptors[torch.isin(descriptors[:, 0], torch.tensor(positions))]
        return ColumnShardedUpdate(self._weights, *self._states, chosen, columns, sections)

    def rounding(self) -> Tensor:
        """What rounding at random depends on in this step, a `RowRounding` for each table."""
        return self._rounding.at(self.num_steps)

    def steps(self) -> Tensor:
        """The settings of this step, a row for each table."""
        return self._settings.at(self.num_steps, self.lr_factor, self.stochastic_rounding)

    def sample_weight_gradient(self, resolved: ResolvedIds, pooled: Tensor) -> Tensor:
        """The gradient of each sample weight, given that of the pooled output."""
        descriptors, batch = self.lookups.pooled_descriptors, resolved.batch
        if self._native is not None:
            gradient = self._native.sample_weight_gradient(descriptors, batch, pooled)
        else:
            gradient = sample_weight_gradient(self._weights, descriptors, *batch, pooled)
        return self.stores.weight_gradient(gradient, resolved)

    def get_extra_state(self) -> dict[str, Any]:
        """Weights, optimizer state and the step count, by table name, for `state_dict`."""
        return collection_state(self)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_extra_state` gave, of the same tables and optimizers in any stores."""
        load_collection_state(self, state)
        if self._copied is not None:
            self.note_copied()

    @property
    def arguments(self) -> dict[str, Any]:
        """What an equal collection is made with."""
        return {**self._arguments, "output_dtype": self.output_dtype}

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddingCollection:
        return copy_of(self, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def extra_repr(self) -> str:
        """Every table, what all take, and what a backward pass does to them."""
        mode = training_mode(is_frozen=self.is_frozen, training=self.training, accumulate=self.accumulate)
        return describe(self.tables, self.optimizers, self.output_dtype, self.bytes(), mode)
