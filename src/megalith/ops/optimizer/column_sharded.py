"""Steps of optimizers that look at whole rows, on column-sharded tables.

A step has two halves, by the native core. `begin` finds the rows that a batch touches, adds up their
gradients and gives the squared row norms over the columns at hand; whoever has other columns of the rows does
the same, and finds the same rows in the same order. All add up their norms, and `finish` takes the step with
the totals: one pass over weights and states. The plain-torch twin is in `column_sharded_twin.py`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.optimizer.steps import NUM_ROW_NORMS, OPTIMIZER_KINDS
from megalith.ops.tensors import address, addresses


class ColumnShardedUpdate:
    """Updates of some tables of a collection, which stay where they are in this machine's memory.

    `columns` are those of the whole rows, by table. `sections` are (table, first row, last row), table by
    table and row by row, and cover each table.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        descriptors: Tensor,
        columns: Sequence[int],
        sections: Sequence[tuple[int, int, int]],
    ) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self._sections = sections
        self._tensors: list[Tensor | None] = [*weights, *first, *second]
        own_descriptors = descriptors.contiguous()
        edges = torch.tensor(sections, dtype=torch.int64)
        widths = torch.tensor(columns, dtype=torch.int64)
        handle = ctypes.c_void_p()
        self._core.mg_column_sharded_create(
            *(own_descriptors.data_ptr(), len(own_descriptors), len(weights)),
            *(addresses(some) for some in (weights, first, second)),
            *(widths.data_ptr(), edges.data_ptr(), len(sections), ctypes.addressof(handle)),
        )
        self._handle = handle.value
        weakref.finalize(self, self._core.mg_column_sharded_destroy, self._handle)
        self._counts = torch.zeros(len(sections), dtype=torch.int64)
        self._gradients: list[Tensor | None] = []

    def begin(self, steps: Tensor, batch: LookupBatch, gradients: OutputGradients) -> list[Tensor]:
        """By section: squared norms over the columns here, one or two for each touched row, rows rising."""
        values = batch.values.contiguous()
        dense = None if gradients.pooled is None else gradients.pooled.float().contiguous()
        sequences = [None if given is None else given.float().contiguous() for given in gradients.sequences]
        # The second half reads them once more.
        self._gradients = [dense, *sequences]
        self._core.mg_column_sharded_find_rows(
            *(self._handle, values.data_ptr(), values.element_size(), batch.offsets.data_ptr()),
            *(address(batch.sample_weights), batch.size),
            *(address(dense), 0 if dense is None else dense.shape[1], addresses(sequences)),
            self._counts.data_ptr(),
        )
        kinds = steps[:, 0].tolist()
        each = {table: NUM_ROW_NORMS[OPTIMIZER_KINDS[int(kinds[table])]] for table, *_ in self._sections}
        counts = self._counts.tolist()
        sizes = [count * each[table] for count, (table, *_) in zip(counts, self._sections, strict=True)]
        norms = torch.empty(sum(sizes))
        self._core.mg_column_sharded_row_norms(self._handle, steps.data_ptr(), norms.data_ptr())
        return list(norms.split(sizes))

    def finish(self, norms: Sequence[Tensor], rounding: Tensor) -> None:
        """The step, given the same norms over all columns of the rows; a `RowRounding` for each table."""
        whole = torch.cat(list(norms))
        self._core.mg_column_sharded_finish(self._handle, whole.data_ptr(), rounding.data_ptr())
        self._gradients = []
