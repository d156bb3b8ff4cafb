"""Pooled lookups over frozen tables in plain torch: the truth of `FrozenLookup`.

A bag is the sum of its rows as `decode_rows` reads them, in float32, in the order of its ids; a mean is
divided once, at the end; a maximum is taken by column. Padding is left out. An empty bag is zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.ops.embedding.pooling import without_padding
from megalith.ops.frozen.changed_rows import changed_numbers
from megalith.ops.frozen.decode import decode_rows
from megalith.ops.frozen.prefix import decode_prefix_rows
from megalith.ops.frozen.table import FrozenTable


def frozen_lookup_twin(
    tables: Sequence[FrozenTable],
    feature_names: Sequence[str],
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Pooled vectors [batch, sum of dims], table by table, the features of a table side by side."""
    values, offsets = values.long(), offsets.long()
    batch = (len(offsets) - 1) // len(feature_names)
    columns = []
    for table in tables:
        for feature in table.features:
            bounds = offsets[feature * batch : (feature + 1) * batch + 1]
            own = slice(int(bounds[0]), int(bounds[-1]))
            weights = None if sample_weights is None else sample_weights[own]
            ids, bounds = values[own], bounds - bounds[0]
            if table.padding is not None:
                ids, bounds, weights, _ = without_padding(ids, bounds, weights, table.padding)
            rows = rows_twin(table, ids, feature_names[feature])
            columns.append(pool_in_order(rows, bounds, table.pooling, weights))
    return torch.cat(columns, dim=1) if columns else torch.zeros(batch, 0)


def rows_twin(table: FrozenTable, ids: Tensor, feature: str) -> Tensor:
    """The rows of ids as float32 [ids, dim]; refuses ids that a table does not have, naming the feature."""
    known = torch.ones(len(ids), dtype=torch.bool)
    if table.ids is None:
        outside = (ids < 0) | (ids >= table.num_rows)
        if bool(outside.any()):
            refuse_id(feature, int(ids[outside][0]), table)
        numbers = ids
    else:
        numbers = torch.searchsorted(table.ids, ids).clamp(max=max(table.num_rows - 1, 0))
        known = table.ids[numbers] == ids if table.num_rows else ~known
        if table.unknown is not None:
            numbers, known = torch.where(known, numbers, table.unknown), torch.ones_like(known)
    out = torch.zeros(len(ids), table.dim)
    if table.starts is None:
        rows = table.rows[numbers[known]]
        if table.changed is not None and table.changed_rows is not None:
            changed = changed_numbers(table.changed)
            places = torch.searchsorted(changed, numbers[known]).clamp(max=max(len(changed) - 1, 0))
            is_changed = changed[places] == numbers[known] if len(changed) else torch.zeros(len(rows)).bool()
            rows[is_changed] = table.changed_rows[places[is_changed]]
        out[known] = decode_rows(rows, table.form, table.dim)
    else:
        out[known] = decode_prefix_rows(table.rows, table.starts, table.prefix, numbers[known])
    return out


def refuse_id(feature: str, value: int, table: FrozenTable) -> None:
    """Raises what a lookup says of an id that its table does not have."""
    raise DataError(
        f"Feature '{feature}' has id {value}, and table '{table.name}' has rows 0 to {table.num_rows - 1}; "
        "send ids that the model was trained with."
    )


def pool_in_order(rows: Tensor, offsets: Tensor, pooling: str, sample_weights: Tensor | None) -> Tensor:
    """Bags of rows, one row of every bag at a time: float32 sums in the order of the rows."""
    lengths = torch.diff(offsets)
    out = torch.zeros(len(lengths), rows.shape[1])
    if pooling != "max" and sample_weights is not None:
        rows = rows * sample_weights[:, None]
    for position in range(int(lengths.max()) if len(lengths) else 0):
        longer = (lengths > position).nonzero().flatten()
        added = rows[offsets[longer] + position]
        if pooling != "max":
            out[longer] += added
        else:
            out[longer] = added if position == 0 else torch.where(added > out[longer], added, out[longer])
    return out / lengths.clamp(min=1)[:, None] if pooling == "mean" else out
