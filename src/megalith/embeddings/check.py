"""What a lookup must be before anything is read or written by it; a fault is one sentence with names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.core.schema import TableSpec, feature_order
from megalith.ops.indices import NONE, OFFSETS, lookup_fault


class LookupCheck:
    """Refuses offsets that do not fit and indices out of range of the tables they are for."""

    def __init__(self, tables: Sequence[TableSpec], device: torch.device | str = "cpu") -> None:
        self._tables, self._features = tuple(tables), feature_order(tables)
        rows: dict[str, int] = {}
        for table in tables:
            for feature in table.features:
                rows[feature] = min(rows.get(feature, table.rows), table.rows)
        self._rows = torch.tensor([rows[feature] for feature in self._features], device=device)

    def __call__(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> None:
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
        fault = lookup_fault(values, offsets, self._rows)
        if fault == OFFSETS:
            raise DataError(
                f"offsets must rise from 0 to the number of values ({len(values)}); they run from "
                f"{int(offsets[0])} to {int(offsets[-1])} or fall in between."
            )
        if fault != NONE:
            raise DataError(self._describe(values, offsets, num_bags // len(self._features), fault))

    def _describe(self, values: Tensor, offsets: Tensor, batch: int, position: int) -> str:
        bag = int(torch.searchsorted(offsets, torch.tensor(position), right=True)) - 1
        feature = self._features[bag // batch]
        table = min((t for t in self._tables if feature in t.features), key=lambda t: t.rows)
        return (
            f"Index {int(values[position])} of feature '{feature}' in sample {bag % batch} is outside table "
            f"'{table.name}' of {table.rows} rows; prepare the data again or give the table more rows."
        )
