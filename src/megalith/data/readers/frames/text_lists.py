"""Lists of ids that are text, such as `Action|Comedy`: cut at what stands between them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megalith.data.readers.frames.types import is_list
from megalith.data.readers.frames.values import read_texts_plainly


def split_texts(column: pa.Array, separator: str) -> pa.Array:
    """Texts as lists of texts, without blanks around them; nothing between two separators is no id, and an
    empty text an empty list."""
    pieces = pc.split_pattern(pc.fill_null(read_texts_plainly(column), ""), separator)
    flat = pc.ascii_trim_whitespace(pc.list_flatten(pieces))
    given = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)
    ends = np.cumsum(pc.list_value_length(pieces).to_numpy(zero_copy_only=False), dtype=np.int64)
    before = np.concatenate([[0], np.cumsum(given)])
    offsets = pa.array(before[np.concatenate([[0], ends])], pa.int64())
    return pa.LargeListArray.from_arrays(offsets, flat.filter(pa.array(given)))


def split_columns(batch: pa.RecordBatch, separators: Mapping[str, str]) -> pa.RecordBatch:
    """A batch with those columns as lists that hold several ids in one text; lists stay as they are."""
    for name, separator in separators.items():
        place = batch.schema.get_field_index(name)
        if place >= 0 and not is_list(batch.schema.field(place).type):
            batch = batch.set_column(place, name, split_texts(batch.column(place), separator))
    return batch


def split_sample(table: pa.Table, separators: Mapping[str, str]) -> pa.Table:
    """The same of the first rows of a file."""
    if not separators:
        return table
    whole = table.combine_chunks()
    columns = {name: whole.column(name) for name in whole.column_names}
    for name, separator in separators.items():
        if name in columns and not is_list(columns[name].type):
            single = columns[name].combine_chunks()
            columns[name] = split_texts(
                single.chunk(0) if isinstance(single, pa.ChunkedArray) else single, separator
            )
    return pa.table(list(columns.values()), names=list(columns))
