"""What a prepared Parquet file must hold: its columns and their types, and the range of every value.

Each check of values gives the positions of bad ones; a minimum and a maximum settle the usual case of none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from megalith.core.errors import DataError
from megalith.data.dataset import MAX_EVENT_TIME, DatasetSchema
from megalith.data.loader.columns import Array
from megalith.data.places import open_parquet, place_text

AGAIN = "run `megalith data prepare` again"


def column_names(schema: DatasetSchema) -> list[str]:
    """The columns that the loader reads, in the order of the schema."""
    optional = [name for name in (schema.weight, schema.event_time) if name is not None]
    return [schema.label, *optional, *schema.numeric, *schema.feature_names]


def read_footer(path: Path, schema: DatasetSchema) -> pq.FileMetaData:
    """The footer of a Parquet file whose columns are what the schema says they are."""
    try:
        with open_parquet(path) as file:
            metadata = file.metadata
        fields = metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{place_text(path)} is not a whole Parquet file (cut off or damaged); {AGAIN}."
        ) from error
    bags = {feature.name for feature in schema.categorical if feature.multi_hot}
    integers = {*schema.feature_names, schema.event_time} - bags
    for name in column_names(schema):
        if name not in fields.names:
            raise DataError(f"{path}, column '{name}' is missing; {AGAIN}.")
        kind = fields.field(name).type
        if name in bags:
            right, wanted = _is_list(kind) and pa.types.is_integer(kind.value_type), "lists of integers"
        elif name in integers:
            right, wanted = pa.types.is_integer(kind), "integers"
        else:
            plain = pa.types.is_floating(kind) or pa.types.is_integer(kind)
            right, wanted = plain or pa.types.is_boolean(kind), "numbers"
        if not right:
            raise DataError(f"{path}, column '{name}' has type {kind} and must hold {wanted}; {AGAIN}.")
    return metadata


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


_NONE: Array = np.empty(0, np.int64)


def outside(num_ids: int | None) -> Callable[[Array], Array]:
    """A check for ids outside [0, num_ids); None takes any 64-bit value."""

    def check(array: Array) -> Array:
        if num_ids is None or not len(array) or (array.min() >= 0 and array.max() < num_ids):
            return _NONE
        return np.flatnonzero((array < 0) | (array >= num_ids))

    return check


def not_a_time(array: Array) -> Array:
    """Positions of event times outside the seconds from 1970 to 2106."""
    return outside(MAX_EVENT_TIME + 1)(array)


def not_finite(array: Array) -> Array:
    """Positions of infinities and not-a-number."""
    # Not-a-number passes through a minimum; infinities are the minimum or the maximum.
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return _NONE
    return np.flatnonzero(~np.isfinite(array))


def not_a_label(array: Array) -> Array:
    """Positions of labels outside [0, 1]."""
    return _NONE if array.min() >= 0 and array.max() <= 1 else np.flatnonzero(~((array >= 0) & (array <= 1)))


def not_a_weight(array: Array) -> Array:
    """Positions of weights that are negative or not finite."""
    if array.min() >= 0 and np.isfinite(array.max()):
        return _NONE
    return np.flatnonzero(~((array >= 0) & np.isfinite(array)))
