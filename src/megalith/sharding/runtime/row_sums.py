"""The gradients of touched rows, summed but not yet applied, for tables whose update needs more than a row.

The rows that occur are numbered over all tables in one sort; the native engine then adds up gradients by
number: a step of SGD with a rate of -1 on zeros. Max pooling and padding, which need the rows themselves, go
through plain torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.embeddings.collection import EmbeddingCollection
from megalith.ops import embedding as ops
from megalith.ops.lookup import RowGradients, reduce_duplicates, value_gradients, without_padding
from megalith.ops.updates import Step

_TABLE, _ROWS, _, _POOLING, _DTYPE, _FEATURE, _, _, _PADDING = range(len(ops.SLOT_FIELDS))
_MAX = ops.POOLINGS.index("max")


class RowSums:
    """Row gradients of some tables of a collection, by their positions in it."""

    def __init__(self, collection: EmbeddingCollection, positions: Sequence[int]) -> None:
        self._tables = collection.tables
        self._weights = [collection.weight(table.name) for table in collection.tables]
        self._num_features = len(collection.features)
        slots = [slot for slot in collection.layout.slots.tolist() if slot[_TABLE] in positions]
        by_hand = {slot[_TABLE] for slot in slots if slot[_POOLING] == _MAX or slot[_PADDING] >= 0}
        self._plain = {p: [slot for slot in slots if slot[_TABLE] == p] for p in positions if p in by_hand}
        self._positions = [position for position in positions if position not in by_hand]
        numbers = {position: number for number, position in enumerate(self._positions)}
        native = [slot for slot in slots if slot[_TABLE] in numbers]
        self._features = [slot[_FEATURE] for slot in native]
        starts = itertools.accumulate((self._tables[p].rows for p in self._positions), initial=0)
        self._starts = torch.tensor(list(starts))
        self._slot_starts = self._starts[[numbers[slot[_TABLE]] for slot in native]]
        self._slots = torch.tensor(native, dtype=torch.int64).view(-1, len(ops.SLOT_FIELDS))
        # Every slot reads a feature of its own: the numbers of its rows are those of its table.
        self._slots[:, _FEATURE] = torch.arange(len(native))
        self._slots[:, _TABLE] = torch.tensor([numbers[slot[_TABLE]] for slot in native])
        self._slots[:, _DTYPE] = 0
        add = Step(kind=ops.KINDS.index("sgd"), lr=-1.0)
        self._add = torch.tensor([add] * len(self._positions), dtype=torch.float32)

    def __call__(
        self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None, gradient: Tensor
    ) -> dict[int, RowGradients]:
        """The touched rows of each table and the sums of their gradients, [samples, columns] being given."""
        found = {
            position: self._by_hand(position, slots, values, offsets, sample_weights, gradient)
            for position, slots in self._plain.items()
        }
        if not self._positions:
            return found
        batch = len(gradient)
        edges = offsets[::batch].tolist() if batch else [0] * (self._num_features + 1)
        pieces = [slice(edges[feature], edges[feature + 1]) for feature in self._features]
        sizes = torch.tensor([piece.stop - piece.start for piece in pieces])
        keys = torch.cat([values[piece] for piece in pieces]).long()
        keys += torch.repeat_interleave(self._slot_starts, sizes)
        rows, numbers = torch.unique(keys, return_inverse=True)
        ends = torch.searchsorted(rows, self._starts)
        numbers -= torch.repeat_interleave(ends[self._slots[:, _TABLE]], sizes)
        counts = torch.diff(ends).tolist()
        sums = [
            torch.zeros(count, self._tables[position].dim)
            for count, position in zip(counts, self._positions, strict=True)
        ]
        lengths = torch.diff(offsets).view(self._num_features, batch)[self._features].flatten()
        bounds = torch.cat([offsets.new_zeros(1), lengths.cumsum(0)])
        weights = None if sample_weights is None else torch.cat([sample_weights[one] for one in pieces])
        slots = self._slots.clone()
        slots[:, _ROWS] = torch.diff(ends)[slots[:, _TABLE]]
        nothing = [torch.empty(0)] * len(sums)
        ops.Tables(sums, nothing, nothing).backward_(
            self._add, slots, numbers, bounds, weights, len(slots), gradient, [], 0
        )
        for position, start, own, summed in zip(
            self._positions, self._starts.tolist(), rows.split(counts), sums, strict=False
        ):
            found[position] = RowGradients(own - start, summed)
        return found

    def _by_hand(
        self,
        position: int,
        slots: list[list[int]],
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        gradient: Tensor,
    ) -> RowGradients:
        weight, batch = self._weights[position], len(gradient)
        ids, spread = [], []
        for _, _, dim, pooling, _, feature, column, _, padding in slots:
            edges = offsets[feature * batch : (feature + 1) * batch + 1]
            begin, end = int(edges[0]), int(edges[-1])
            given = None if sample_weights is None else sample_weights[begin:end]
            found, edges, given, _ = without_padding(values[begin:end].long(), edges - begin, given, padding)
            columns = gradient[:, column : column + dim]
            ids.append(found)
            spread.append(value_gradients(weight, found, edges, ops.POOLINGS[pooling], columns, given))
        if not sum(map(len, ids)):
            return RowGradients(torch.zeros(0, dtype=torch.int64), torch.zeros(0, weight.shape[1]))
        return reduce_duplicates(torch.cat(ids), torch.cat(spread))
