"""What a lookup must be before anything is read or written by it; a fault is one sentence with names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.core.schema import MAX_NARROW_ROWS, TableSpec, feature_order
from megalith.ops.embedding.index_check import NONE, OFFSETS, checked_copy, lookup_fault

Indices = tuple[Tensor, Tensor, Tensor | None]
"""Values, offsets and sample weights, as the operators take them."""


class LookupCheck:
    """Refuses offsets that do not fit and indices out of range of the tables they are for."""

    def __init__(self, tables: Sequence[TableSpec], device: torch.device | str = "cpu") -> None:
        self._tables, self._features = tuple(tables), feature_order(tables)
        rows: dict[str, int] = {}
        for table in tables:
            for feature in table.features:
                if not table.is_dynamic:
                    rows[feature] = min(rows.get(feature, table.rows), table.rows)
        # Any 64-bit value is an id of a dynamic table.
        self._rows = torch.tensor([rows.get(feature, -1) for feature in self._features], device=device)
        self._wide = any(table.is_dynamic or table.rows > MAX_NARROW_ROWS for table in tables)

    def __call__(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> None:
        """Looks and copies nothing."""
        self._check_lengths(values, offsets, sample_weights)
        self._refuse(lookup_fault(values, offsets, self._rows), values, offsets)

    def copied(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> Indices:
        """The same indices and weights, checked, in memory that the caller does not have.

        For lookups that come back to them: whoever owns a numpy array under a tensor may write the next
        batch into it before the backward pass, and torch would not notice. Ids are kept in four bytes where
        these are enough, so that the copy costs no more than reading eight once more.
        """
        self._check_lengths(values, offsets, sample_weights)
        copy = checked_copy(values, offsets, self._rows, wide=self._wide)
        self._refuse(copy.fault, values, offsets)
        if sample_weights is None:
            return copy.values, copy.offsets, None
        # A copy wants a gradient where the weights do, whoever computes none for now.
        with torch.enable_grad():
            own = sample_weights.float().contiguous()
            return copy.values, copy.offsets, own.clone() if own is sample_weights else own

    def _check_lengths(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> None:
        num_bags = len(offsets) - 1
        if num_bags < 0 or num_bags % len(self._features):
            raise DataError(
                f"offsets has {len(offsets)} entries; pass features * batch + 1, a multiple of "
                f"{len(self._features)} features and one more."
            )
        if sample_weights is not None and sample_weights.shape != values.shape:
            raise DataError(
                f"sample_weights has {len(sample_weights)} entries; pass one for each of the values."
            )

    def _refuse(self, fault: int, values: Tensor, offsets: Tensor) -> None:
        if fault == NONE:
            return
        if fault == OFFSETS:
            raise DataError(
                f"offsets must rise from 0 to the number of values ({len(values)}); they run from "
                f"{int(offsets[0])} to {int(offsets[-1])} or fall in between."
            )
        raise DataError(self._describe(values, offsets, (len(offsets) - 1) // len(self._features), fault))

    def _describe(self, values: Tensor, offsets: Tensor, batch: int, position: int) -> str:
        bag = int(torch.searchsorted(offsets, torch.tensor(position), right=True)) - 1
        feature = self._features[bag // batch]
        bounded = (t for t in self._tables if feature in t.features and not t.is_dynamic)
        table = min(bounded, key=lambda t: t.rows)
        return (
            f"Index {int(values[position])} of feature '{feature}' in sample {bag % batch} is outside table "
            f"'{table.name}' of {table.rows} rows; prepare the data again or give the table more rows."
        )


def event_times(time: int | Tensor, samples: int) -> Tensor:
    """When each of some samples happened, int64 [samples]: all at one time, or each at its own."""
    if not isinstance(time, Tensor):
        return torch.full((samples,), time)
    if time.dtype != torch.int64 or time.shape != (samples,):
        raise DataError(
            f"event_time is {str(time.dtype).removeprefix('torch.')} {list(time.shape)}; pass one "
            f"number of seconds, or int64 [{samples}]: one for each sample."
        )
    return time.contiguous()
