"""`ReplicatedTables`: data-parallel tables, whole on every worker, read locally, kept equal by an all-reduce.

The lookup (`lookup.py`) reads them while the vectors of other tables travel, and updates them in the backward
pass, on all ranks alike. It owns this worker's copies and the all-reduce of their gradients: those of all
tables, and a mark for every touched row, lie in one flat buffer, so one all-reduce serves them all; then all
ranks update the same rows with the same sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.descriptors import CollectionLookups
from megalith.embeddings.optimizers import RowOptimizer
from megalith.ops.embedding.descriptors import (
    POOLINGS,
    LookupBatch,
    LookupDescriptor,
    OutputGradients,
    descriptors_of,
)
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.embedding.pooling import value_gradients, without_padding
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.optimizer.stochastic_rounding import RowRounding
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds
from megalith.sharding.wire_format import FLOAT_BYTES

_FEATURE, _DTYPE, _POOLING, _SEQUENCE = (
    LookupDescriptor._fields.index(name) for name in ("feature", "dtype", "pooling", "sequence")
)


class ReplicatedTables:
    """The tables that every worker holds: this worker's copies, and the all-reduce of their gradients."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[str],
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        *,
        stochastic_rounding: bool,
        comm: CommContext | None,
    ) -> None:
        self._num_features, self._comm = len(features), comm
        self._all_reduce = None if comm is None else comm.all_reduce()
        # Updates come as one gradient for each touched row: every table is a sequence of its own.
        updated = [
            table.model_copy(
                update={"pooling": "none", "features": (table.name,), "padding_index": None, "store": None}
            )
            for table in tables
        ]
        self.collection = EmbeddingCollection(
            updated,
            seed=seed,
            table_optimizers={table.name: optimizers[table.name] for table in tables},
            stochastic_rounding=stochastic_rounding,
        )
        """The copies, each as a sequence; checkpoints read and write them here."""
        lookups = CollectionLookups(tables)
        self._output_dim = lookups.output_dim
        numbers = torch.tensor([features.index(feature) for feature in lookups.features])
        self._descriptors = lookups.descriptors.clone()
        self._descriptors[:, _FEATURE] = numbers[self._descriptors[:, _FEATURE]]
        self._pooled_descriptors = self._descriptors[self._descriptors[:, _SEQUENCE] < 0].contiguous()
        self._sequences = [(descriptor, table.dim) for descriptor, table, _ in lookups.sequences]
        weights = [self.collection.weight(table.name) for table in tables]
        self._readable = NativeTables(weights, *_no_states(tables))
        self._gradients = _GradientSums(tables, self._descriptors, weights, len(features))

    def read(self, ids: JaggedIds) -> Tensor:
        """Pooled vectors of this rank's samples, [batch, columns of these tables]."""
        batch = LookupBatch(ids.values, ids.offsets, ids.sample_weights, self._num_features)
        return self._readable.forward(self._pooled_descriptors, batch, self._output_dim, torch.float32)

    def read_sequences(self, ids: JaggedIds) -> list[Tensor]:
        """A vector for every id, [ids of the feature, dim], table by table, feature by feature."""
        batch = LookupBatch(ids.values, ids.offsets, None, self._num_features)
        return [
            self._readable.sequence(self._descriptors, batch, descriptor, dim, torch.float32)
            for descriptor, dim in self._sequences
        ]

    def sample_weight_gradient(self, ids: JaggedIds, gradient: Tensor) -> Tensor:
        """Of the weights of this rank's ids, by these tables."""
        assert ids.sample_weights is not None
        batch = LookupBatch(ids.values, ids.offsets, ids.sample_weights, self._num_features)
        return self._readable.sample_weight_gradient(self._pooled_descriptors, batch, gradient)

    def update(
        self,
        ids: JaggedIds,
        gradient: Tensor,
        num_steps: int,
        lr_factor: float,
        sequences: Sequence[Tensor | None] = (),
        wanted: Sequence[bool] | None = None,
    ) -> None:
        """Step number `num_steps` on the rows that any rank touched; all ranks call it.

        `wanted` says of what is pooled, and of each sequence, whether it has a gradient on any rank; rows of
        others are not touched.
        """
        sums = self._gradients
        sums.set(ids, gradient, sequences, wanted)
        if self._comm is not None and self._all_reduce is not None:
            # A ring sends every number about twice, wherever it starts.
            self._comm.traffic.count("replicated gradients", 2 * sums.flat.numel() * FLOAT_BYTES)
            self._all_reduce.add_(sums.flat)
        touched = sums.touched()
        self.collection.num_steps, self.collection.lr_factor = num_steps - 1, lr_factor
        rows = self.collection.resolve((touched.rows, touched.offsets, None), trains=True)
        self.collection.update(rows, None, touched.gradients)


class _TouchedRows(NamedTuple):
    """The rows that any rank touched, table by table."""

    rows: Tensor
    offsets: Tensor
    """Where the rows of each table begin, and where the last ones end."""
    gradients: list[Tensor | None]
    """By table: [its touched rows, dim]"""


class _GradientSums:
    """The dense gradients of all tables and a mark for every touched row, in one flat buffer.

    Rows are summed up by the native engine: a step of SGD with a rate of -1 on zeros.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        descriptors: Tensor,
        weights: Sequence[Tensor],
        num_features: int,
    ) -> None:
        self._weights, self._num_features = weights, num_features
        sizes = [table.rows * table.dim for table in tables]
        starts = list(itertools.accumulate((table.rows for table in tables), initial=0))
        self._row_starts, self._row_ends = starts, torch.tensor(starts[1:])
        self.flat = torch.zeros(sum(sizes) + starts[-1])
        """What ranks add up."""
        self._by_table = [
            part.view(table.rows, table.dim)
            for part, table in zip(self.flat[: sum(sizes)].split(sizes), tables, strict=True)
        ]
        self._marks = self.flat[sum(sizes) :]
        self._tables = NativeTables(self._by_table, *_no_states(tables))
        add = OptimizerStep(kind=OPTIMIZER_KINDS.index("sgd"), lr=-1.0)
        self._add = torch.tensor([add] * len(tables), dtype=torch.float32)
        self._rounding = torch.zeros(len(tables), len(RowRounding._fields), dtype=torch.int64)
        # Max pooling needs the rows themselves to know where a gradient belongs; all others only add up.
        is_max = descriptors[:, _POOLING] == POOLINGS.index("max")
        self._max_descriptors = descriptors_of(descriptors[is_max])
        self._sum_descriptors = descriptors[~is_max].contiguous()
        self._sum_descriptors[:, _DTYPE] = 0
        # Output 0 is what is pooled, then come the sequences.
        self._marked = [(row[_FEATURE], starts[row[0]], row[_SEQUENCE] + 1) for row in descriptors.tolist()]
        self._padding = torch.tensor(
            [
                start + table.padding_index
                for start, table in zip(starts, tables, strict=False)
                if table.padding_index is not None
            ],
            dtype=torch.int64,
        )

    def set(
        self,
        ids: JaggedIds,
        gradient: Tensor,
        sequences: Sequence[Tensor | None],
        wanted: Sequence[bool] | None,
    ) -> None:
        """Fills the buffer with what this rank's samples give."""
        self.flat.zero_()
        batch = LookupBatch(ids.values, ids.offsets, ids.sample_weights, self._num_features)
        if len(self._sum_descriptors):
            gradients = OutputGradients(gradient, sequences)
            self._tables.backward_(self._add, self._sum_descriptors, batch, gradients, self._rounding)
        for descriptor in self._max_descriptors:
            self._add_max(descriptor, ids, gradient)
        self._mark(ids, wanted)

    def touched(self) -> _TouchedRows:
        """The rows that are marked, and their gradients."""
        touched = self._marks.nonzero().flatten()
        ends = torch.searchsorted(touched, self._row_ends).tolist()
        sizes = [last - first for first, last in itertools.pairwise([0, *ends])]
        rows = [part - start for part, start in zip(touched.split(sizes), self._row_starts, strict=False)]
        gradients = [whole.index_select(0, at) for whole, at in zip(self._by_table, rows, strict=True)]
        return _TouchedRows(torch.cat(rows), torch.tensor([0, *ends]), list(gradients))

    def _mark(self, ids: JaggedIds, wanted: Sequence[bool] | None) -> None:
        """Every row that this rank's batch holds, of the outputs that have a gradient."""
        edges = ids.offsets[:: ids.batch].tolist() if ids.batch else [0] * (self._num_features + 1)
        for feature, start, output in self._marked:
            if wanted is not None and not wanted[output]:
                continue
            self._marks[ids.values[edges[feature] : edges[feature + 1]].long() + start] = 1.0
        self._marks[self._padding] = 0.0

    def _add_max(self, lookup: LookupDescriptor, ids: JaggedIds, gradient: Tensor) -> None:
        table = lookup.table
        edges = ids.offsets[lookup.feature * ids.batch : (lookup.feature + 1) * ids.batch + 1]
        values = ids.values[int(edges[0]) : int(edges[-1])].long()
        edges = edges - edges[0]
        if lookup.padding >= 0:
            values, edges, _, _ = without_padding(values, edges, None, lookup.padding)
        if len(values):
            columns = gradient[:, lookup.column : lookup.column + lookup.dim]
            by_value = value_gradients(self._weights[table], values, edges, "max", columns)
            self._by_table[table].index_add_(0, values, by_value)


def _no_states(tables: Sequence[TableSpec]) -> tuple[list[Tensor], list[Tensor]]:
    """First and second optimizer states of tables that have none."""
    return [torch.empty(0)] * len(tables), [torch.empty(0)] * len(tables)
