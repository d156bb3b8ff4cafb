"""Frames of other libraries as Arrow tables; none of these libraries is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from megalith.core.errors import DataError

_TAKEN = "a pandas or polars frame, a pyarrow table or record batch, or a dict of arrays by column"


def as_table(frame: Any) -> pa.Table:
    """A frame of pandas or polars, a pyarrow table or record batch, or a dict of columns, as a table."""
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if isinstance(frame, pa.RecordBatchReader):
        return frame.read_all()
    library = type(frame).__module__.partition(".")[0]
    try:
        if isinstance(frame, Mapping):
            return pa.table({str(name): _column(name, values) for name, values in frame.items()})
        if library == "pandas" and hasattr(frame, "columns"):
            return _from_pandas(frame)
        if library == "polars" and hasattr(frame, "collect"):
            frame = frame.collect()
        if library == "polars" and hasattr(frame, "get_columns"):
            return frame.to_arrow()
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"The frame cannot be read as columns ({reason}); give each column one type."
        ) from error
    raise DataError(f"predict takes {_TAKEN}, not {type(frame).__name__}; convert it.")


def _from_pandas(frame: Any) -> pa.Table:
    names = [str(name) for name in frame.columns]
    # Column by column, so that a sentence can name the one that fails; the index is no column.
    return pa.table(
        [_column(name, frame.iloc[:, position]) for position, name in enumerate(names)], names=names
    )


def _column(name: object, values: Any) -> Any:
    try:
        column = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"Column '{name}' of the frame is no column of one type ({reason}); convert it."
        ) from error
    return column
