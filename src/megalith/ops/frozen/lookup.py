"""Pooled lookups over many frozen tables in one native call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.ops import native
from megalith.ops.embedding.descriptors import POOLINGS
from megalith.ops.frozen.formats import PRECISIONS
from megalith.ops.frozen.lookup_twin import refuse_id
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.tensors import address, check_tensor

_INDICES = (torch.int32, torch.int64)
_OFFSETS = -2
_MAX_LISTED = 2**32 - 1
_Fault = ctypes.c_int64 * 2


class FrozenDescriptor(NamedTuple):
    """A lookup of one feature in one frozen table, as csrc/frozen/lookup.cpp has it."""

    rows: int
    starts: int
    ids: int
    same_ids_as: int
    """The first lookup of the same table: ids are indexed once."""
    num_rows: int
    row_bytes: int
    dim: int
    precision: int
    header_bytes: int
    chunk: int
    chunk_bytes: int
    unit: int
    pooling: int
    feature: int
    column: int
    has_padding: int
    padding: int
    unknown: int
    changed: int
    changed_rows: int


class FrozenLookup:
    """Some tables, looked up together: ids of all features in, their pooled vectors side by side out.

    Calls from several threads at once are fine. Rows are read where they are: put them on huge pages first
    (`memory.resident`) where there are many.
    """

    def __init__(self, tables: Sequence[FrozenTable], feature_names: Sequence[str]) -> None:
        self.tables = tuple(tables)
        self.feature_names = tuple(feature_names)
        self.output_dim = sum(table.dim * len(table.features) for table in tables)
        described: list[FrozenDescriptor] = []
        self._tables_of: list[FrozenTable] = []
        for table in self.tables:
            first = len(described)
            for feature in table.features:
                if not 0 <= feature < len(self.feature_names):
                    raise ConfigError(f"Table '{table.name}' looks feature {feature} up, which there is not.")
                column = sum(lookup.dim for lookup in described)
                described.append(_described(table, first, feature, column))
                self._tables_of.append(table)
        native.share_torch_threads()
        self._core = native.library()
        packed = torch.tensor(described or torch.empty(0, len(FrozenDescriptor._fields)), dtype=torch.int64)
        handle = ctypes.c_void_p()
        self._core.mg_frozen_create(packed.data_ptr(), len(described), ctypes.addressof(handle))
        self.handle = handle.value
        self._features = [lookup.feature for lookup in described]
        weakref.finalize(self, self._core.mg_frozen_destroy, self.handle)

    def __call__(
        self,
        values: Tensor,
        offsets: Tensor,
        out: Tensor | None = None,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Pooled vectors, float32 [batch, output_dim], table by table, features of a table side by side.

        `values` [N] and `offsets` [features * batch + 1] are int32 or int64, feature-major, in one piece.
        `out`, where it is given, is filled and returned. An id that its table does not have is refused,
        naming the feature.
        """
        num_offsets, num_features = offsets.shape[0], len(self.feature_names)
        size = (num_offsets - 1) // num_features if num_features else 0
        if (
            values.dtype not in _INDICES
            or offsets.dtype not in _INDICES
            or num_offsets != size * num_features + 1
        ):
            self._refuse(values, offsets)
        if not (values.is_contiguous() and offsets.is_contiguous()):
            values, offsets = values.contiguous(), offsets.contiguous()
        if out is None:
            out = torch.empty(size, self.output_dim)
        elif out.shape != (size, self.output_dim) or out.dtype != torch.float32 or not out.is_contiguous():
            raise ConfigError(f"`out` must be contiguous float32 [{size}, {self.output_dim}].")
        if sample_weights is not None:
            check_tensor("sample_weights", sample_weights, (torch.float32,), 1, whole=True)
            if len(sample_weights) != len(values):
                raise ConfigError(f"Pass a sample weight for each of {len(values)} ids.")
        fault = _Fault()
        self._core.mg_frozen_lookup(
            *(self.handle, values.data_ptr(), values.element_size(), values.shape[0]),
            *(offsets.data_ptr(), offsets.element_size(), size, num_features),
            *(address(sample_weights), out.data_ptr(), self.output_dim, fault),
        )
        if fault[0] != -1:
            self._refuse_fault(fault[0], fault[1], values)
        return out

    def index_bytes(self) -> int:
        """Memory of the index of listed ids, beside that of the tables."""
        return int(self._core.mg_frozen_id_bytes(self.handle))

    def _refuse(self, values: Tensor, offsets: Tensor) -> None:
        check_tensor("values", values, _INDICES, 1)
        check_tensor("offsets", offsets, _INDICES, 1)
        count = len(self.feature_names)
        raise ConfigError(f"offsets has {len(offsets)} entries; pass batch * {count} features and one more.")

    def _refuse_fault(self, lookup: int, position: int, values: Tensor) -> None:
        if lookup == _OFFSETS:
            raise DataError(
                f"offsets must rise from 0 to the number of values ({len(values)}), and these do not."
            )
        name = self.feature_names[self._features[lookup]]
        refuse_id(name, int(values[position]), self._tables_of[lookup])


def _described(table: FrozenTable, first: int, feature: int, column: int) -> FrozenDescriptor:
    if table.num_rows > _MAX_LISTED:
        raise ConfigError(f"Table '{table.name}' has more than {_MAX_LISTED:,} rows.")
    form, layout = table.form, table.prefix
    return FrozenDescriptor(
        rows=table.rows.data_ptr(),
        starts=address(table.starts) or 0,
        ids=0 if table.ids is None else table.ids.data_ptr() or 1,
        same_ids_as=first,
        num_rows=table.num_rows,
        row_bytes=form.row_bytes(table.dim),
        dim=table.dim,
        precision=PRECISIONS.index(form.precision),
        header_bytes=form.header_bytes,
        chunk=layout.chunk,
        chunk_bytes=layout.chunk_bytes,
        unit=layout.unit,
        pooling=POOLINGS.index(table.pooling),
        feature=feature,
        column=column,
        has_padding=int(table.padding is not None),
        padding=table.padding or 0,
        unknown=-1 if table.unknown is None else table.unknown,
        changed=address(table.changed) or 0,
        changed_rows=address(table.changed_rows) or 0,
    )
