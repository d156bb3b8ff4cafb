"""Steps of optimizers that look at whole rows, where only some columns of these rows are here.

A step has two halves, by the native core. `begin` finds the rows that a batch touches, adds up their
gradients and gives the sums of squares over the columns at hand; whoever has other columns of the rows does
the same, and finds the same rows in the same order. All add up their sums, and `finish` takes the step with
the totals: one pass over weights and states. The plain-torch twin is in `ops/coupled_twin.py`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.embedding import KINDS, address, addresses
from megalith.ops.simd import simd_level
from megalith.ops.updates import NUM_SUMS

__all__ = ["NUM_SUMS", "CoupledUpdate"]


class CoupledUpdate:
    """Some tables of a collection, which stay where they are in this machine's memory.

    `columns` are those of the whole rows, by table. `sections` are (table, first row, last row), table by
    table and row by row, and cover each table.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        slots: Tensor,
        columns: Sequence[int],
        sections: Sequence[tuple[int, int, int]],
    ) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self._sections = sections
        self._kept: list[Tensor | None] = [*weights, *first, *second]
        own_slots = slots.contiguous()
        edges = torch.tensor(sections, dtype=torch.int64)
        widths = torch.tensor(columns, dtype=torch.int64)
        handle = ctypes.c_void_p()
        self._core.mg_coupled_create(
            *(own_slots.data_ptr(), len(own_slots), len(weights)),
            *(addresses(some) for some in (weights, first, second)),
            *(widths.data_ptr(), edges.data_ptr(), len(sections), ctypes.addressof(handle)),
        )
        self._handle = handle.value
        weakref.finalize(self, self._core.mg_coupled_destroy, self._handle)
        self._counts = torch.zeros(len(sections), dtype=torch.int64)
        self._lent: list[Tensor | None] = []

    def begin(
        self,
        steps: Tensor,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        num_features: int,
        gradient: Tensor | None,
        sequence_gradients: Sequence[Tensor | None] = (),
    ) -> list[Tensor]:
        """By section: sums of squares over the columns here, one or two for each row, rows rising."""
        values = values.contiguous()
        dense = None if gradient is None else gradient.float().contiguous()
        sequences = [None if one is None else one.float().contiguous() for one in sequence_gradients]
        # The second half reads them once more.
        self._lent = [dense, *sequences]
        self._core.mg_coupled_find(
            *(self._handle, values.data_ptr(), values.element_size(), offsets.data_ptr()),
            *(address(sample_weights), (len(offsets) - 1) // num_features),
            *(address(dense), 0 if dense is None else dense.shape[1], addresses(sequences)),
            *(simd_level(), self._counts.data_ptr()),
        )
        kinds = steps[:, 0].tolist()
        each = {table: NUM_SUMS[KINDS[int(kinds[table])]] for table, *_ in self._sections}
        counts = self._counts.tolist()
        sizes = [count * each[table] for count, (table, *_) in zip(counts, self._sections, strict=True)]
        sums = torch.empty(sum(sizes))
        self._core.mg_coupled_add_up(self._handle, steps.data_ptr(), sums.data_ptr())
        return list(sums.split(sizes))

    def finish(self, totals: Sequence[Tensor], seed: int) -> None:
        """The step, given the same sums over all columns of the rows."""
        whole = torch.cat(list(totals))
        self._core.mg_coupled_finish(self._handle, whole.data_ptr(), seed & (2**64 - 1))
        self._lent = []
