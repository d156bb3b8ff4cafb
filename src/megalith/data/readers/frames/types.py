"""What Arrow types hold."""

from __future__ import annotations

import pyarrow as pa


def is_list(kind: pa.DataType) -> bool:
    """Lists of any kind."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of single values: of a list's, of a dictionary's, or the type itself."""
    return kind.value_type if is_list(kind) or pa.types.is_dictionary(kind) else kind


def is_integer(kind: pa.DataType) -> bool:
    """Integers, or lists or dictionaries of them."""
    return pa.types.is_integer(value_type(kind))


def is_fraction(kind: pa.DataType) -> bool:
    """Numbers that are no integers."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Bytes that need not be valid text."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_text(kind: pa.DataType) -> bool:
    """Text or bytes."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_binary(kind) or is_view(kind)


def is_view(kind: pa.DataType) -> bool:
    """Text or bytes by reference, as Polars writes them."""
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def is_category(kind: pa.DataType) -> bool:
    """Single values that can be taken as categories."""
    return is_text(kind) or is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
