"""`EmbeddingCollection`: many tables looked up in one call, updated in the backward pass.

    emb = EmbeddingCollection(tables, optimizer=RowWiseAdaGrad(lr=0.01), seed=0)
    out = emb(values, offsets)      # [batch, sum of dims]
    out.backward(gradient)          # every touched row is updated exactly once

Weights are buffers, not parameters: no dense optimizer, and no gradient tensor, ever sees them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, check_tables, too_many_rows
from megalith.embeddings.autograd import LookupFunction
from megalith.embeddings.check import LookupCheck
from megalith.embeddings.descriptors import CollectionLookups
from megalith.embeddings.initial_values import TableWindow, initial_values
from megalith.embeddings.memory import check_fits, taking_memory
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad, StepSettings, optimizer_of_each
from megalith.embeddings.row_block import WEIGHT, part_specs
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables, allocate_table
from megalith.ops.embedding.operators import embedding_forward, embedding_sequence, sample_weight_gradient
from megalith.ops.optimizer.backward import embedding_backward_
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.steps import PhysicalRows


class Lookup(NamedTuple):
    """What one call reads: pooled vectors side by side, and the sequences of tables that do not pool."""

    pooled: Tensor
    """[batch, output_dim], table by table, feature by feature"""
    sequences: dict[tuple[str, str], Tensor]
    """(table, feature) -> [ids of that feature, dim], in the order of `values`"""


class EmbeddingCollection(nn.Module):
    """Embedding tables over one list of features.

    `values` and `offsets` are feature-major in the order of `features`: every feature once, as the tables
    first name it. Start values depend on the seed and the table's name alone.

    `table_optimizers` gives single tables an optimizer of their own. `stochastic_rounding` rounds updated
    half-precision weights at random, reproducibly from the seed, so that small steps are not lost. `windows`
    names the tables that are parts of larger ones.

    Models and the sharding runtime call `lookup`; autograd calls `read`, `sample_weight_gradient` and
    `update`. The collection owns the rows of its tables and their optimizer state.
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
    ) -> None:
        super().__init__()
        check_tables(tables)
        self.tables = tuple(tables)
        self.lookups = CollectionLookups(tables)
        """The lookups as the operators are told of them."""
        self.features = self.lookups.features
        self.optimizer: RowOptimizer = optimizer or RowWiseAdaGrad()
        self.optimizers = optimizer_of_each(tables, self.optimizer, table_optimizers or {})
        self.seed, self.stochastic_rounding, self.output_dtype = seed, stochastic_rounding, output_dtype
        self.lr_factor = 1.0
        """Multiplies every optimizer's learning rate; a schedule sets it before each step."""
        self.num_steps = 0
        of_each = [(windows or {}).get(table.name) or TableWindow.whole(table) for table in tables]
        for table, window in zip(tables, of_each, strict=True):
            # Before memory is asked for: rows beyond these would be taken for others.
            if table.rows > MAX_DENSE_ROWS:
                raise ConfigError(too_many_rows(window.table.name, table.rows))
        on_cpu = torch.device(device).type == "cpu"
        if on_cpu:
            check_fits(tables, self.optimizers)
        self._check = LookupCheck(tables, device)
        with taking_memory(tables, self.optimizers):
            # What holds the rows of a table, and which row an id has, is decided here and nowhere else: every
            # table is dense, and an id is its row.
            self._rows = [
                _dense_rows(table, window, own, seed, device)
                for table, window, own in zip(tables, of_each, self.optimizers, strict=True)
            ]
        self._weights = [rows.weight for rows in self._rows]
        self._states = [rows.first for rows in self._rows], [rows.second for rows in self._rows]
        self._native = NativeTables(self._weights, *self._states) if on_cpu else None
        self._settings = StepSettings(self.optimizers)
        self._positions = {table.name: position for position, table in enumerate(tables)}
        self._anchor = torch.zeros((), requires_grad=True, device=device)

    @property
    def output_dim(self) -> int:
        """Columns of the pooled output."""
        return self.lookups.output_dim

    def weight(self, table: str) -> Tensor:
        """The stored rows of a table, [rows, dim]; changes as training goes on."""
        return self._rows[self._positions[table]].weight

    def state(self, table: str) -> dict[str, Tensor]:
        """The optimizer state of a table: `first` and `second`, where its optimizer has them."""
        rows = self._rows[self._positions[table]]
        both = {"first": rows.first, "second": rows.second}
        return {name: tensor for name, tensor in both.items() if tensor.numel()}

    def table_parts(self, table: str) -> dict[str, Tensor]:
        """The weight of a table and its optimizer's state, as checkpoints name them."""
        return {WEIGHT: self.weight(table), **self.state(table)}

    def table_states(self) -> dict[str, TableState]:
        """Every table as a checkpoint sees it; loading writes into the rows."""
        return {
            table.name: TableState(
                table.rows,
                table.dim,
                part_specs(table, optimizer),
                (self.table_shard(table.name),),
            )
            for table, optimizer in zip(self.tables, self.optimizers, strict=True)
        }

    def table_shard(
        self, table: str, first_row: int = 0, first_column: int = 0, *, writes: bool = True
    ) -> TableShard:
        """A table, or a rectangle of a larger one, as checkpoints see it; of copies one `writes`."""
        return DenseShard(first_row, first_column, self.table_parts(table), writes)

    def forward(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Pooled vectors [batch, output_dim]; `sample_weights` holds a factor for each value."""
        return self.lookup(values, offsets, sample_weights).pooled

    @torch.compiler.disable
    def lookup(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Lookup:
        """Pooled vectors and sequences of one batch."""
        if torch.is_grad_enabled():
            # The backward pass comes back to them, and nobody may have changed them in the meantime.
            indices = self._check.copied(values, offsets, sample_weights)
            pooled, *sequences = LookupFunction.apply(self._anchor, self, *indices)
        else:
            offsets = offsets.contiguous()
            if sample_weights is not None:
                sample_weights = sample_weights.float().contiguous()
            self.check(values, offsets, sample_weights)
            pooled, *sequences = self.read(values, offsets, sample_weights)
        names = [(table.name, feature) for _, table, feature in self.lookups.sequences]
        return Lookup(pooled, dict(zip(names, sequences, strict=True)))

    def check(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> None:
        """Refuses offsets that do not fit and indices out of range, before anything is read or written."""
        self._check(values, offsets, sample_weights)

    def read(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> tuple[Tensor, ...]:
        """The forward pass: pooled columns, then one sequence for each feature of a table without pooling."""
        lookups, batch = self.lookups, LookupBatch(values, offsets, sample_weights, len(self.features))
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
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
        descriptors: Tensor | None = None,
    ) -> None:
        """The backward pass: gradients of outputs in, one optimizer step on the touched rows out.

        `descriptors`, some of `lookups`, leaves all other lookups, and the tables of only these, as they are.
        Where there is not enough memory nothing is changed, and the error says so.
        """
        self.num_steps += 1
        chosen = self.lookups.descriptors if descriptors is None else descriptors
        batch = LookupBatch(values, offsets, sample_weights, len(self.features))
        gradients = OutputGradients(pooled, sequences)
        try:
            if self._native is not None:
                self._native.backward_(self.steps(), chosen, batch, gradients, self.step_seed())
            else:
                tables = self._weights, *self._states
                embedding_backward_(*tables, self.steps(), chosen, *batch, *gradients, self.step_seed())
        except Exception:
            # A step that failed does not count.
            self.num_steps -= 1
            raise

    def column_sharded_update(
        self, positions: Sequence[int], columns: Sequence[int], sections: Sequence[tuple[int, int, int]]
    ) -> ColumnShardedUpdate:
        """Updates of some tables in two halves, for those that have only some `columns` of their rows."""
        descriptors = self.lookups.descriptors
        chosen = descriptors[torch.isin(descriptors[:, 0], torch.tensor(positions))]
        return ColumnShardedUpdate(self._weights, *self._states, chosen, columns, sections)

    def step_seed(self) -> int:
        """The seed of what is rounded at random in this step."""
        digest = hashlib.sha256(f"{self.seed}:{self.num_steps}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    def steps(self) -> Tensor:
        """The settings of this step, a row for each table."""
        return self._settings.at(self.num_steps, self.lr_factor, self.stochastic_rounding)

    def sample_weight_gradient(
        self, values: Tensor, offsets: Tensor, sample_weights: Tensor, pooled: Tensor
    ) -> Tensor:
        """The gradient of each sample weight, given that of the pooled output."""
        descriptors = self.lookups.pooled_descriptors
        batch = LookupBatch(values, offsets, sample_weights, len(self.features))
        if self._native is not None:
            return self._native.sample_weight_gradient(descriptors, batch, pooled)
        gradient: Tensor = sample_weight_gradient(self._weights, descriptors, *batch, pooled)
        return gradient

    def get_extra_state(self) -> dict[str, Any]:
        """Weights, optimizer state and the step count, by table name, for `state_dict`."""
        names = [table.name for table in self.tables]
        return {
            "num_steps": self.num_steps,
            "weights": dict(zip(names, self._weights, strict=True)),
            "states": {name: self.state(name) for name in names},
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_extra_state` gave, of a collection of the same tables."""
        if set(state["weights"]) != set(self._positions):
            raise ConfigError(
                "The saved tables are not those of this collection; load it with its own recipe."
            )
        self.num_steps = int(state["num_steps"])
        for name, weight in state["weights"].items():
            self.weight(name).copy_(weight)
            for key, value in state["states"][name].items():
                self.state(name)[key].copy_(value)


def _dense_rows(
    table: TableSpec, window: TableWindow, optimizer: RowOptimizer, seed: int, device: torch.device | str
) -> PhysicalRows:
    """A row for every id, and the optimizer's state of each."""

    def state(shape: str) -> Tensor:
        if shape == "none":
            return torch.zeros(0, device=device)
        # On huge pages like the rows: one number of a row is as far from the next row's as a page is long.
        numbers = allocate_table(table.rows, table.dim if shape == "full" else 1, torch.float32).zero_()
        return (numbers if shape == "full" else numbers.view(-1)).to(device)

    weight = initial_values(window, seed).to(device)
    return PhysicalRows(weight, state(optimizer.first_state), state(optimizer.second_state))
