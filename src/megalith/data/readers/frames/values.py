"""Arrow columns to what blocks hold: numbers, vectors, event times and keys.

Integers become keys through their decimal text, and so do floats that are whole: a data set prepared from
Parquet and one prepared from the same values as text have the same vocabulary, and so has a column of
integers that became floats because some are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.core.errors import DataError
from megalith.data.readers.block import Bag
from megalith.data.readers.event_time import EventTimeColumn, is_time, seconds
from megalith.data.readers.frames.types import is_binary, is_integer, is_list, is_text
from megalith.data.readers.raw_ids import integer_keys
from megalith.ops.text.keys import Keys, token_keys

RawKind = Literal["integers", "texts"]
MISSING_WORDS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that stand for a missing number; of categories only the empty text is missing."""
_EXACT_WHOLE = float(2**53)


class Floats(NamedTuple):
    """Numbers of some rows, NaN where they are missing, and which rows hold none."""

    values: NDArray[np.float64]
    bad: NDArray[np.bool_]


def read_numbers(path: Path, column: pa.Array, name: str) -> Floats:
    """A column as float64; texts that are no numbers are bad."""
    if is_text(column.type):
        return numbers_of_texts(column)
    try:
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(f"{path}: column '{name}' holds no numbers ({error}); leave it out.") from error
    return Floats(values, np.zeros(len(values), bool))


def numbers_of_texts(column: pa.Array) -> Floats:
    """The numbers that texts are."""
    texts = as_string(column)
    plain = all_numbers(texts)
    if plain is not None:
        return Floats(plain.to_numpy(zero_copy_only=False), np.zeros(len(plain), bool))
    trimmed = pc.ascii_trim_whitespace(texts)
    given = pc.if_else(pc.is_in(trimmed, value_set=pa.array(MISSING_WORDS, texts.type)), None, trimmed)
    numbers, bad = cast_texts(given, pa.float64())
    return Floats(numbers.to_numpy(zero_copy_only=False), bad)


def all_numbers(texts: pa.Array) -> pa.Array | None:
    """The numbers that texts are where each is one or empty; None where one is not."""
    try:
        return pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def cast_texts(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Texts as another type, null where they are none, and which those are."""
    try:
        return texts.cast(kind), np.zeros(len(texts), bool)
    except pa.ArrowInvalid:
        pass
    # Some value is wrong: each distinct one is tried by itself.
    encoded = texts.dictionary_encode()
    found = [_cast_one(text, kind) for text in encoded.dictionary.to_pylist()]
    values = pa.array([None if value is None else value.as_py() for value in found], kind)
    wrong = pa.array([value is None for value in found], pa.bool_())
    bad = pc.fill_null(wrong.take(encoded.indices), False)
    return values.take(encoded.indices), bad.to_numpy(zero_copy_only=False)


def read_vectors(column: pa.Array, length: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Lists of floats as [length, rows], NaN where a list is missing or has another length; and the lengths,
    -1 of a missing list."""
    rows = len(column)
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    vectors = np.full((rows, length), np.nan)
    right = lengths == length
    ends = np.cumsum(np.maximum(lengths, 0))
    starts = ends[right] - length
    vectors[right] = flat[starts[:, None] + np.arange(length)]
    return np.ascontiguousarray(vectors.T), lengths


def read_times(
    path: Path, values: pa.Array, column: EventTimeColumn
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Event times in seconds, and which of them are some."""
    if is_text(values.type):
        kind = pa.timestamp("us") if column.unit == "timestamps" else pa.int64()
        texts = pc.ascii_trim_whitespace(as_string(values))
        values, _ = cast_texts(pc.if_else(pc.equal(texts, ""), None, texts), kind)
    right = is_time(values.type) if column.unit == "timestamps" else pa.types.is_integer(values.type)
    if not right:
        raise DataError(
            f"{path}: column '{column.name}' has type {values.type}, other than in the first file, where "
            f"event times are {column.unit}; convert it."
        )
    return seconds(values, column.unit)


def read_keys(path: Path, column: pa.Array, name: str, multi_hot: bool, raw: RawKind | None) -> Keys | Bag:
    """The keys of a feature."""
    # An integer and its text have different raw ids: all files must agree.
    other_raw = raw is not None and is_integer(column.type) != (raw == "integers")
    if is_list(column.type) != multi_hot or other_raw:
        raise DataError(
            f"{path}: column '{name}' has type {column.type}, other than in the first file; leave it out."
        )
    if not multi_hot:
        return _scalar_keys(path, column, name, raw)
    # A null inside a list says nothing; it is kept as the missing value so that lengths stay.
    return Bag(_scalar_keys(path, pc.list_flatten(column), name, raw), row_ends(column))


def row_ends(column: pa.Array) -> NDArray[np.int64]:
    """Where the values of each list end among those of all."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return np.cumsum(lengths, dtype=np.int64)


def bucket_keys(values: NDArray[np.float64]) -> Keys:
    """The same buckets as for text: floor(log(x)^2) + 3 above 2, else floor(x); NaN is a missing value."""
    missing = np.isnan(values)
    logs = np.log(np.maximum(values, 2.0, where=~missing, out=np.full_like(values, 2.0)))
    buckets = np.where(values > 2, np.floor(logs * logs) + 3, np.floor(np.maximum(values, -9999999)))
    texts = pa.array(np.where(missing, 0, buckets).astype(np.int64), mask=missing).cast(pa.large_string())
    return _text_keys(pc.fill_null(texts, ""))


def _scalar_keys(path: Path, column: pa.Array, name: str, raw: RawKind | None) -> Keys:
    if raw == "integers":
        unsigned = column.type == pa.uint64()
        values = pc.fill_null(column.cast(pa.uint64() if unsigned else pa.int64()), 0)
        keys = integer_keys(values.to_numpy(zero_copy_only=False))
        keys[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return keys
    return _text_keys(read_texts(path, column, name))


def read_texts(path: Path, column: pa.Array, name: str) -> pa.Array:
    """Single values as the text or bytes that their keys stand for; empty where they are missing."""
    try:
        if pa.types.is_floating(column.type):
            texts = _float_texts(column)
        else:
            texts = column.cast(pa.large_binary() if is_binary(column.type) else pa.large_string())
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: column '{name}' cannot be read as categories ({error}); leave it out."
        ) from error
    return pc.fill_null(texts, b"" if is_binary(texts.type) else "")


def _float_texts(column: pa.Array) -> pa.Array:
    """Floats as text, whole ones as integers are: 3.0 is 3; NaN is a missing value."""
    values = column.cast(pa.float64())
    whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less(pc.abs(values), _EXACT_WHOLE))
    integers = pc.if_else(whole, values, None).cast(pa.int64(), safe=False).cast(pa.large_string())
    texts = pc.coalesce(integers, column.cast(pa.large_string()))
    return pc.if_else(pc.is_nan(values), None, texts)


def _text_keys(texts: pa.Array) -> Keys:
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.empty(0, np.uint64)
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return token_keys(b"" if data is None else memoryview(data), bounds)


def read_texts_plainly(column: pa.Array) -> pa.Array:
    """Single values of any type as text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return _float_texts(column) if pa.types.is_floating(column.type) else as_string(column)


def as_string(column: pa.Array) -> pa.Array:
    """Text or bytes as text."""
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        # Not UTF-8: no number, but it can be shown.
        texts = [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
        return pa.array(texts, pa.large_string())


def _cast_one(text: str, kind: pa.DataType) -> pa.Scalar | None:
    try:
        return pa.scalar(text.removeprefix("+")).cast(kind)
    except pa.ArrowInvalid:
        return None
