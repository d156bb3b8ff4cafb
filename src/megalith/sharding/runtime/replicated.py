"""Data-parallel tables: whole on every worker, read locally, kept equal by summing gradients over all ranks.

The gradients of all tables and a mark for every touched row lie in one flat buffer, so one sum over ranks
serves them all; then every rank updates the same rows with the same sums. Rows are summed up by the native
engine: a step of SGD with a rate of -1 on zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.descriptors import CollectionLookups
from megalith.embeddings.optimizers import RowOptimizer
from megalith.ops.embedding.descriptors import POOLINGS, LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.embedding.pooling import value_gradients, without_padding
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.sharding.runtime.routing import Bags

_FEATURE, _DTYPE, _POOLING, _SEQUENCE = (
    LookupDescriptor._fields.index(name) for name in ("feature", "dtype", "pooling", "sequence")
)


class ReplicatedTables:
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
        self._tables, self._num_features = tuple(tables), len(features)
        self._comm = comm
        self._all_reduce = None if comm is None else comm.all_reduce()
        # Updates come as one gradient for each touched row: every table is a sequence of its own.
        updated = [
            table.model_copy(update={"pooling": "none", "features": (table.name,), "padding_index": None})
            for table in tables
        ]
        self.collection = EmbeddingCollection(
            updated,
            seed=seed,
            table_optimizers={table.name: optimizers[table.name] for table in tables},
            stochastic_rounding=stochastic_rounding,
        )
        lookups = CollectionLookups(tables)
        self._output_dim = lookups.output_dim
        positions = torch.tensor([features.index(feature) for feature in lookups.features])
        self._all_slots = lookups.descriptors.clone()
        self._all_slots[:, _FEATURE] = positions[self._all_slots[:, _FEATURE]]
        self._sequences = [(slot, table.dim) for slot, table, _ in lookups.sequences]
        is_pooled = self._all_slots[:, _SEQUENCE] < 0
        self._slots = self._all_slots[is_pooled].contiguous()
        self._weights = [self.collection.weight(table.name) for table in tables]
        nothing = [torch.empty(0)] * len(tables)
        self._readable = NativeTables(self._weights, nothing, nothing)
        # Max pooling needs the rows themselves to know where a gradient belongs; all others only add up.
        is_max = self._all_slots[:, _POOLING] == POOLINGS.index("max")
        self._summing_slots = self._all_slots[~is_max].contiguous()
        self._summing_slots[:, _DTYPE] = 0
        self._max_slots = self._all_slots[is_max].tolist()
        cells = [table.rows * table.dim for table in tables]
        self._cells, self._rows = sum(cells), sum(table.rows for table in tables)
        self._sums = torch.zeros(self._cells + self._rows)
        self._gradients = [
            part.view(table.rows, table.dim)
            for part, table in zip(self._sums[: self._cells].split(cells), tables, strict=True)
        ]
        self._marks = self._sums[self._cells :]
        self._summing = NativeTables(self._gradients, nothing, nothing)
        add = OptimizerStep(kind=OPTIMIZER_KINDS.index("sgd"), lr=-1.0)
        self._add = torch.tensor([add] * len(tables), dtype=torch.float32)
        starts = list(itertools.accumulate((table.rows for table in tables), initial=0))
        self._ends = torch.tensor(starts[1:])
        slots = self._all_slots.tolist()
        # Output 0 is what is pooled, then come the sequences.
        self._marked = [(slot[_FEATURE], starts[slot[0]], slot[_SEQUENCE] + 1) for slot in slots]
        self._starts = starts
        self._padding = torch.tensor(
            [
                start + table.padding_index
                for start, table in zip(starts, tables, strict=False)
                if table.padding_index is not None
            ],
            dtype=torch.int64,
        )

    def read(self, bags: Bags) -> Tensor:
        """Pooled vectors of this rank's samples, [batch, columns of these tables]."""
        batch = LookupBatch(bags.values, bags.offsets, bags.sample_weights, self._num_features)
        return self._readable.forward(self._slots, batch, self._output_dim, torch.float32)

    def read_sequences(self, bags: Bags) -> list[Tensor]:
        """A vector for every id, [ids of the feature, dim], table by table, feature by feature."""
        batch = LookupBatch(bags.values, bags.offsets, None, self._num_features)
        return [
            self._readable.sequence(self._all_slots, batch, slot, dim, torch.float32)
            for slot, dim in self._sequences
        ]

    def sample_weight_gradient(self, bags: Bags, gradient: Tensor) -> Tensor:
        """Of the weights of this rank's ids, by these tables."""
        assert bags.sample_weights is not None
        batch = LookupBatch(bags.values, bags.offsets, bags.sample_weights, self._num_features)
        return self._readable.sample_weight_gradient(self._slots, batch, gradient)

    def update(
        self,
        bags: Bags,
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
        self._sums.zero_()
        batch = LookupBatch(bags.values, bags.offsets, bags.sample_weights, self._num_features)
        if len(self._summing_slots):
            gradients = OutputGradients(gradient, sequences)
            self._summing.backward_(self._add, self._summing_slots, batch, gradients, 0)
        for slot in self._max_slots:
            self._add_max(slot, bags, gradient)
        self._mark(bags, wanted)
        if self._comm is not None and self._all_reduce is not None:
            # A ring sends every number about twice, wherever it starts.
            self._comm.traffic.count("replicated gradients", 2 * self._sums.numel() * 4)
            self._all_reduce.add_(self._sums)
        touched = self._marks.nonzero().flatten()
        ends = torch.searchsorted(touched, self._ends).tolist()
        sizes = [last - first for first, last in itertools.pairwise([0, *ends])]
        rows = [part - start for part, start in zip(touched.split(sizes), self._starts, strict=False)]
        row_gradients = [one.index_select(0, at) for one, at in zip(self._gradients, rows, strict=True)]
        self.collection.num_steps, self.collection.lr_factor = num_steps - 1, lr_factor
        self.collection.update(torch.cat(rows), torch.tensor([0, *ends]), None, None, list(row_gradients))

    def _mark(self, bags: Bags, wanted: Sequence[bool] | None) -> None:
        """Every row that this rank's batch holds, of the outputs that have a gradient."""
        edges = bags.offsets[:: bags.batch].tolist() if bags.batch else [0] * (self._num_features + 1)
        for feature, start, output in self._marked:
            if wanted is not None and not wanted[output]:
                continue
            self._marks[bags.values[edges[feature] : edges[feature + 1]].long() + start] = 1.0
        self._marks[self._padding] = 0.0

    def _add_max(self, slot: list[int], bags: Bags, gradient: Tensor) -> None:
        table, _, dim, _, _, feature, column, _, padding = slot
        edges = bags.offsets[feature * bags.batch : (feature + 1) * bags.batch + 1]
        values = bags.values[int(edges[0]) : int(edges[-1])].long()
        edges = edges - edges[0]
        if padding >= 0:
            values, edges, _, _ = without_padding(values, edges, None, padding)
        if len(values):
            columns = gradient[:, column : column + dim]
            spread = value_gradients(self._weights[table], values, edges, "max", columns)
            self._gradients[table].index_add_(0, values, spread)
