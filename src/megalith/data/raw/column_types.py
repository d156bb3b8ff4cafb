"""Columns as the readers of `data prepare` take them: numbers, and categories as they were in training.

What other tools make of the same values is taken back: integers with gaps that became floats, integers and
numbers that are text in a CSV file, dictionaries. Anything else is one sentence with its row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megalith.core.errors import DataError


class Column(NamedTuple):
    """A column of some rows, and where they stand."""

    where: str
    first_row: int
    name: str
    values: pa.Array


def as_numbers(column: Column) -> pa.Array:
    """A column of numbers; text is parsed."""
    values = _plain(column.values)
    kind = values.type
    if pa.types.is_null(kind) or _is_text(kind):
        return _cast(column, values, pa.float64(), "a number")
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return values
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return values
    raise _wrong_type(column, kind, "numbers")


def as_vectors(column: Column) -> pa.Array:
    """A column of lists of floats, whose lengths the reader checks."""
    values = column.values
    if pa.types.is_null(values.type):
        return values.cast(pa.large_list(pa.float64()))
    kind = values.type.value_type if _is_list(values.type) else None
    if kind is None or not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise _wrong_type(column, values.type, "lists of numbers")
    return values


def as_categories(column: Column, *, multi_hot: bool, integers: bool | None) -> pa.Array:
    """A column of categories. `integers`: whether they were integers when the model was trained; None where
    that is not known, and whole floats may be integers too."""
    values = _plain(column.values)
    if _is_list(values.type) != multi_hot and not pa.types.is_null(values.type):
        raise _wrong_type(column, values.type, "lists of categories" if multi_hot else "single categories")
    kind = values.type.value_type if _is_list(values.type) else values.type
    if not (pa.types.is_null(kind) or _is_category(kind)):
        raise _wrong_type(column, kind, "categories")
    target = _target(values, kind, integers)
    if target is None:
        return values
    if pa.types.is_floating(kind) and not multi_hot:
        values = pc.if_else(pc.is_nan(values), None, values)
    return _cast(column, values, pa.large_list(target) if multi_hot else target, "an integer")


def _target(values: pa.Array, kind: pa.DataType, integers: bool | None) -> pa.DataType | None:
    """The type that categories must have, or None where it is right."""
    if integers:
        return None if pa.types.is_integer(kind) else pa.int64()
    if pa.types.is_floating(kind) and integers is None and not _is_list(values.type) and _all_whole(values):
        return pa.int64()
    is_view = pa.types.is_string_view(kind) or pa.types.is_null(kind)
    # Keys of integers as values differ from those of their text, which was trained on.
    return pa.large_string() if is_view or pa.types.is_integer(kind) else None


def _all_whole(values: pa.Array) -> bool:
    numbers = values.to_numpy(zero_copy_only=False)
    found = numbers[~np.isnan(numbers)]
    return bool((np.floor(found) == found).all())


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _cast(column: Column, values: pa.Array, target: pa.DataType, meant: str) -> pa.Array:
    if _is_text(values.type) and not _is_text(target):
        # An empty text is a missing value, as it is in files of text.
        texts = values.cast(pa.large_string())
        values = pc.if_else(pc.equal(texts, ""), None, texts)
    try:
        return values.cast(target)
    except pa.ArrowException:
        row = _first_failing(values, target)
    shown = str(values[row].as_py())
    shown = f"{shown[:24]}..." if len(shown) > 24 else shown
    raise DataError(
        f"{column.where}, row {column.first_row + row}: column '{column.name}' holds '{shown}', which is not "
        f"{meant} as it was in training; correct it or leave it empty."
    )


def _first_failing(values: pa.Array, target: pa.DataType) -> int:
    """The first value that cannot be cast, by halves."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values.slice(low, middle - low).cast(target)
        except pa.ArrowException:
            high = middle
        else:
            low = middle
    return low


def _wrong_type(column: Column, kind: pa.DataType, wanted: str) -> DataError:
    return DataError(
        f"{column.where}, from row {column.first_row}: column '{column.name}' has type {kind} and held "
        f"{wanted} in training; convert it."
    )


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_category(kind: pa.DataType) -> bool:
    return (
        _is_text(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
