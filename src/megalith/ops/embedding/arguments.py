"""What the registered lookups refuse before the native core reads memory by it, each in one sentence.

Callers inside the package that have checked already go past this (`NativeTables`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.core.schema import MAX_DENSE_ROWS
from megalith.ops.embedding.descriptors import POOLINGS, LookupBatch, LookupDescriptor, descriptors_of
from megalith.ops.embedding.index_check import NONE, OFFSETS, lookup_fault
from megalith.ops.tensors import FLOAT_DTYPES, STORED_DTYPES, check_tensor

_NO_POOLING = POOLINGS.index("none")
_INT64_MAX = 2**63 - 1


def check_lookup(
    weights: Sequence[Tensor], descriptors: Tensor, batch: LookupBatch
) -> list[LookupDescriptor]:
    """Refuses faults of tables, descriptors and ids that any lookup may have; returns the descriptors."""
    values, offsets, sample_weights, num_features = batch
    for number, weight in enumerate(weights):
        check_tensor(f"weights[{number}]", weight, STORED_DTYPES, 2, whole=True)
        if weight.shape[1] < 1:
            raise ConfigError(f"weights[{number}] has no columns; pass a table of one or more.")
    check_tensor("descriptors", descriptors, (torch.int64,), 2)
    check_tensor("values", values, (torch.int32, torch.int64), 1)
    check_tensor("offsets", offsets, (torch.int64,), 1)
    if sample_weights is not None:
        check_tensor("sample_weights", sample_weights, (torch.float32,), 1)
        if len(sample_weights) != len(values):
            raise ConfigError(
                f"sample_weights has {len(sample_weights)} entries; pass one for each of the values, "
                f"{len(values)}."
            )
    check_bags(offsets, num_features)
    if descriptors.shape[1] != len(LookupDescriptor._fields):
        raise ConfigError(
            f"descriptors has {descriptors.shape[1]} columns; pass {len(LookupDescriptor._fields)} "
            "(LookupDescriptor)."
        )
    described = descriptors_of(descriptors)
    for number, lookup in enumerate(described):
        _check_descriptor(number, lookup, weights, num_features)
    rows = [_INT64_MAX] * num_features
    for lookup in described:
        rows[lookup.feature] = min(rows[lookup.feature], lookup.rows)
    fault = lookup_fault(values, offsets, torch.tensor(rows))
    if fault == OFFSETS:
        raise DataError(
            f"offsets must rise from 0 to the number of values ({len(values)}), and these do not."
        )
    if fault != NONE:
        raise DataError(
            f"values[{fault}] is {int(values[fault])}, outside the table that its feature is looked up in; "
            "pass ids in [0, rows)."
        )
    return described


def check_bags(offsets: Tensor, num_features: int) -> None:
    """Refuses a number of offsets that is not features * batch + 1."""
    if num_features < 1:
        raise ConfigError(f"num_features is {num_features}; pass 1 or more.")
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ConfigError(
            f"offsets has {offsets.shape[0]} entries; pass batch * {num_features} features and one more."
        )


def contiguous_lookup(descriptors: Tensor, batch: LookupBatch) -> tuple[Tensor, LookupBatch]:
    """The same in one piece each, as the core reads them."""
    values, offsets, sample_weights, num_features = batch
    weights = None if sample_weights is None else sample_weights.contiguous()
    return descriptors.contiguous(), LookupBatch(
        values.contiguous(), offsets.contiguous(), weights, num_features
    )


def _check_descriptor(
    number: int, lookup: LookupDescriptor, weights: Sequence[Tensor], num_features: int
) -> None:
    def refuse(what: str) -> ConfigError:
        return ConfigError(f"descriptors[{number}] {what}.")

    if not 0 <= lookup.table < len(weights):
        raise refuse(f"names table {lookup.table} of {len(weights)}, the first being 0")
    weight = weights[lookup.table]
    if (lookup.rows, lookup.dim) != tuple(weight.shape):
        raise refuse(f"says {lookup.rows} x {lookup.dim} of a table of {weight.shape[0]} x {weight.shape[1]}")
    if lookup.rows > MAX_DENSE_ROWS:
        raise refuse(f"names a table of {lookup.rows:,} rows; the most is {MAX_DENSE_ROWS:,}")
    if not 0 <= lookup.dtype < len(STORED_DTYPES) or STORED_DTYPES[lookup.dtype] != weight.dtype:
        raise refuse(f"says dtype {lookup.dtype} of a table of {weight.dtype}")
    if not 0 <= lookup.pooling < len(POOLINGS):
        raise refuse(f"says pooling {lookup.pooling}, which is none of {len(POOLINGS)}")
    if not 0 <= lookup.feature < num_features:
        raise refuse(f"names feature {lookup.feature} of {num_features}, the first being 0")
    if lookup.layout != 0:
        raise refuse("names chunked rows, which no tensor holds; use ops.embedding.native_tables")
    if lookup.padding < -1:
        raise refuse(f"says padding {lookup.padding}; pass an id, or -1 for none")


def check_output(described: Sequence[LookupDescriptor], output_dim: int, dtype: torch.dtype) -> None:
    """Refuses lookups that do not fill the pooled output, each column once."""
    check_output_dtype(dtype)
    column = 0
    for lookup in sorted(described, key=lambda any_lookup: any_lookup.column):
        if lookup.pooling == _NO_POOLING:
            raise ConfigError(
                "embedding_forward was given a lookup that does not pool; use embedding_sequence."
            )
        if lookup.column != column:
            raise ConfigError(
                f"descriptors leave or share columns between {min(column, lookup.column)} and "
                f"{max(column, lookup.column)} of the output; pass each column once."
            )
        column += lookup.dim
    if column != output_dim:
        raise ConfigError(f"descriptors fill {column} columns and output_dim is {output_dim}; pass the same.")


def check_output_dtype(dtype: torch.dtype) -> None:
    """Refuses a type that the kernels do not write."""
    if dtype not in STORED_DTYPES:
        raise ConfigError(f"The output cannot be {dtype}; pass float32, float16 or bfloat16.")


def check_sequence(described: Sequence[LookupDescriptor], number: int, dim: int, dtype: torch.dtype) -> None:
    """Refuses a lookup that is not there, that pools, or that has another number of columns."""
    check_output_dtype(dtype)
    if not 0 <= number < len(described):
        raise ConfigError(f"number is {number} and there are {len(described)}, the first being 0.")
    if described[number].pooling != _NO_POOLING:
        raise ConfigError(f"descriptors[{number}] pools; use embedding_forward.")
    if described[number].dim != dim:
        raise ConfigError(
            f"dim is {dim} and descriptors[{number}] has {described[number].dim} columns; pass the same."
        )


def check_gradient(described: Sequence[LookupDescriptor], gradient: Tensor, batch: int) -> None:
    """Refuses a pooled gradient that lacks samples or columns."""
    check_tensor("gradient", gradient, FLOAT_DTYPES, 2)
    if len(gradient) != batch:
        raise ConfigError(f"gradient has {len(gradient)} rows; pass one for each of {batch} samples.")
    for number, lookup in enumerate(described):
        if lookup.pooling != _NO_POOLING and not 0 <= lookup.column <= gradient.shape[1] - lookup.dim:
            raise ConfigError(
                f"descriptors[{number}] has columns {lookup.column} to {lookup.column + lookup.dim} of a "
                f"gradient of {gradient.shape[1]}."
            )
