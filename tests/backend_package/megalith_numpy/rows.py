"""Pooled lookups over frozen rows, bag by bag in the order of ids."""

from itertools import pairwise

import numpy as np
import torch

from megalith.core.errors import DataError


class NumpyLookup:
    """Some tables; called with ids and offsets of all features."""

    def __init__(self, tables, features):
        self._tables, self._features = tables, features

    def __call__(self, values, offsets):
        values, offsets = values.numpy().astype(np.int64), offsets.numpy()
        batch = (len(offsets) - 1) // len(self._features)
        pooled = []
        for table in self._tables:
            for feature in table.features:
                bounds = offsets[feature * batch : (feature + 1) * batch + 1]
                pooled.append(self._pooled(table, self._features[feature], values, bounds))
        return torch.from_numpy(np.concatenate(pooled, 1))

    def _pooled(self, table, feature, values, bounds):
        out = np.zeros((len(bounds) - 1, table.dim), np.float32)
        for bag, (first, last) in enumerate(pairwise(bounds)):
            ids = values[first:last]
            if table.padding is not None:
                ids = ids[ids != table.padding]
            for position, number in enumerate(ids):
                row = _row(table, feature, int(number))
                if table.pooling == "max" and position:
                    out[bag] = np.maximum(out[bag], row)
                else:
                    out[bag] += row
            if table.pooling == "mean" and len(ids):
                out[bag] /= np.float32(len(ids))
        return out


def _row(table, feature, number):
    """One row as float32 [dim]."""
    if table.ids is not None:
        listed = table.ids.numpy()
        place = int(np.searchsorted(listed, number))
        known = place < len(listed) and listed[place] == number
        if not known and table.unknown is None:
            return np.zeros(table.dim, np.float32)
        number = place if known else table.unknown
    elif not 0 <= number < table.num_rows:
        raise DataError(f"Feature '{feature}' has id {number}, which its table does not have; send another.")
    if table.starts is None:
        return _decoded(table.rows[number].numpy(), table.form, table.dim)
    starts, unit = table.starts, table.prefix.unit
    first, last = int(starts[number]) * unit, int(starts[number + 1]) * unit
    row = np.zeros(table.dim, np.float32)
    if last > first:
        chunks = next(
            n for n in range(table.prefix.num_chunks + 1) if table.prefix.units(n) * unit == last - first
        )
        width = table.prefix.width(chunks)
        row[:width] = _decoded(table.rows[first:last].numpy(), table.form, width)
    return row


def _decoded(held, form, dim):
    if not form.is_integer:
        return held.view(form.precision)[:dim].astype(np.float32)
    scale, bias = held[: form.header_bytes].view(form.scale).astype(np.float32)
    codes = held[form.header_bytes :]
    if form.precision == "int4":
        codes = np.stack([codes & 15, codes >> 4], 1).reshape(-1)
    return scale * codes[:dim].astype(np.float32) + bias
