"""Embedding lookup and update over many tables in one call, by the native core.

Registered with torch as `megalith::embedding_forward`, `embedding_sequence`, `embedding_backward_` and
`sample_weight_gradient`, so that torch.compile and opcheck see them. A lookup is described by `slots`, an
int64 row for each (table, feature) with `SLOT_FIELDS`; forward takes the slots that pool, backward all. They
check all they are given (`ops/arguments.py`); `Tables` checks nothing. The plain-torch twins are in
`ops/embedding_twin.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.arguments import (
    DTYPES,
    check_apart,
    check_bags,
    check_devices,
    check_gradient,
    check_lookup,
    check_output,
    check_sequence,
    check_update,
)
from megalith.ops.embedding_twin import (
    KINDS,
    POOLINGS,
    embedding_backward_twin_,
    embedding_forward_twin,
    embedding_sequence_twin,
    sample_weight_gradient_twin,
)
from megalith.ops.simd import simd_level

__all__ = [
    "DTYPES",
    "KINDS",
    "POOLINGS",
    "SLOT_FIELDS",
    "Tables",
    "allocate",
    "embedding_backward_",
    "embedding_forward",
    "embedding_sequence",
    "sample_weight_gradient",
]

SLOT_FIELDS = ("table", "rows", "dim", "pooling", "dtype", "feature", "column", "sequence", "padding")
_FEATURE, _SEQUENCE = SLOT_FIELDS.index("feature"), SLOT_FIELDS.index("sequence")

_library = torch.library.Library("megalith", "FRAGMENT")
_LOOKUP = "Tensor slots, Tensor values, Tensor offsets, Tensor? sample_weights, int num_features"
_library.define(f"embedding_forward(Tensor[] weights, {_LOOKUP}, int output_dim, ScalarType dtype) -> Tensor")
_library.define(
    f"embedding_sequence(Tensor[] weights, {_LOOKUP}, int slot, int dim, ScalarType dtype) -> Tensor"
)
_library.define(
    "embedding_backward_(Tensor(a!)[] weights, Tensor(b!)[] first, Tensor(c!)[] second, Tensor steps, "
    f"{_LOOKUP}, Tensor? gradient, Tensor?[] sequence_gradients, int seed) -> ()"
)
_library.define(f"sample_weight_gradient(Tensor[] weights, {_LOOKUP}, Tensor gradient) -> Tensor")

embedding_forward = torch.ops.megalith.embedding_forward.default
embedding_sequence = torch.ops.megalith.embedding_sequence.default
embedding_backward_ = torch.ops.megalith.embedding_backward_.default
sample_weight_gradient = torch.ops.megalith.sample_weight_gradient.default


def allocate(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """An uninitialised table on huge pages where the system has them: far fewer address translations."""
    weight = torch.empty(rows, dim, dtype=dtype)
    native.library().mg_advise_huge_pages(weight.data_ptr(), weight.numel() * weight.element_size())
    return weight


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    found = [None if one is None or not one.numel() else one.data_ptr() for one in tensors]
    return (ctypes.c_void_p * max(1, len(found)))(*found)


def address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _batch(offsets: Tensor, num_features: int) -> int:
    return (len(offsets) - 1) // num_features


class Tables:
    """Tables that stay where they are in this machine's memory: their addresses are found once.

    What the registered operators do, without handing every tensor through torch's dispatcher at each call:
    with small batches that costs more than the lookup. The tensors must not be replaced or resized, and
    nothing is checked: ids must have been, and offsets, slots and sample weights be contiguous.
    """

    def __init__(self, weights: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self._kept = [*weights, *first, *second]
        self._count = len(weights)
        self._weights, self._first, self._second = (addresses(some) for some in (weights, first, second))

    def forward(
        self,
        slots: Tensor,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        num_features: int,
        output_dim: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """Pooled vectors [batch, output_dim] of the slots that pool."""
        batch = _batch(offsets, num_features)
        out = torch.empty(batch, output_dim, dtype=dtype)
        values = values.contiguous()
        self._core.mg_embedding_forward(
            *(slots.data_ptr(), len(slots), self._weights, values.data_ptr(), values.element_size()),
            *(offsets.data_ptr(), address(sample_weights), batch),
            *(out.data_ptr(), DTYPES.index(dtype), output_dim, None, simd_level()),
        )
        return out

    def backward_(
        self,
        steps: Tensor,
        slots: Tensor,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        num_features: int,
        gradient: Tensor | None,
        sequence_gradients: Sequence[Tensor | None],
        seed: int,
    ) -> None:
        """One optimizer step on every touched row."""
        values = values.contiguous()
        dense = None if gradient is None else gradient.float().contiguous()
        sequences = [None if one is None else one.float().contiguous() for one in sequence_gradients]
        self._core.mg_embedding_backward(
            *(slots.data_ptr(), len(slots), self._count, self._weights, self._first, self._second),
            *(values.data_ptr(), values.element_size(), offsets.data_ptr(), address(sample_weights)),
            *(_batch(offsets, num_features), address(dense), 0 if dense is None else dense.shape[1]),
            *(addresses(sequences), steps.data_ptr(), seed & (2**64 - 1), simd_level()),
        )

    def sequence(
        self,
        slots: Tensor,
        values: Tensor,
        offsets: Tensor,
        num_features: int,
        slot: int,
        dim: int,
        dtype: torch.dtype,
    ) -> Tensor:
        """A vector for every id of a slot that does not pool, [ids, dim]."""
        batch = _batch(offsets, num_features)
        one = slots[slot : slot + 1].clone()
        one[0, _SEQUENCE] = 0
        feature = int(one[0, _FEATURE])
        count = int(offsets[(feature + 1) * batch] - offsets[feature * batch])
        out = torch.empty(count, dim, dtype=dtype)
        values = values.contiguous()
        self._core.mg_embedding_forward(
            *(one.data_ptr(), 1, self._weights, values.data_ptr(), values.element_size()),
            *(offsets.data_ptr(), None, batch, None, DTYPES.index(dtype), 0, addresses([out]), simd_level()),
        )
        return out

    def sample_weight_gradient(
        self, slots: Tensor, values: Tensor, offsets: Tensor, num_features: int, gradient: Tensor
    ) -> Tensor:
        """The gradient of a factor for each value, whatever the factor was."""
        values, dense = values.contiguous(), gradient.float().contiguous()
        total = torch.zeros(len(values))
        again = torch.empty(0)
        batch, seen = _batch(offsets, num_features), set()
        features = slots[:, _FEATURE].tolist()
        # Where no table pools there is no slot, and yet `split` would give a part.
        for slot, feature in zip(slots.split(1), features, strict=False):
            out, ids = total, slice(int(offsets[feature * batch]), int(offsets[(feature + 1) * batch]))
            if feature in seen:
                # A feature looked up in several tables adds up one table after the other.
                out = again = again if len(again) else torch.zeros(len(values))
                out[ids] = 0.0
            self._core.mg_sample_weight_gradient(
                *(slot.data_ptr(), 1, self._weights, values.data_ptr(), values.element_size()),
                *(offsets.data_ptr(), batch, dense.data_ptr(), dense.shape[1], out.data_ptr(), simd_level()),
            )
            if feature in seen:
                total[ids] += out[ids]
            seen.add(feature)
        return total


def _whole(slots: Tensor, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> tuple[Any, ...]:
    """The same in one piece each, as the core reads them."""
    return tuple(
        None if one is None else one.contiguous() for one in (slots, values, offsets, sample_weights)
    )


@torch.library.impl(_library, "embedding_forward", "CPU")
def _forward(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    output_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    described = check_lookup(weights, slots, values, offsets, sample_weights, num_features)
    slots, values, offsets, sample_weights = _whole(slots, values, offsets, sample_weights)
    check_output(described, output_dim, dtype)
    lookup = slots, values, offsets, sample_weights, num_features
    return Tables(weights, (), ()).forward(*lookup, output_dim, dtype)


@torch.library.impl(_library, "embedding_sequence", "CPU")
def _sequence(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    slot: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    described = check_lookup(weights, slots, values, offsets, sample_weights, num_features)
    slots, values, offsets, sample_weights = _whole(slots, values, offsets, sample_weights)
    check_sequence(described, slot, dim, dtype)
    return Tables(weights, (), ()).sequence(slots, values, offsets, num_features, slot, dim, dtype)


@torch.library.impl(_library, "embedding_backward_", "CPU")
def _backward(
    weights: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
    seed: int,
) -> None:
    described = check_lookup(weights, slots, values, offsets, sample_weights, num_features)
    tables = weights, first, second
    check_update(tables, steps, described, offsets, num_features, gradient, sequence_gradients)
    slots, values, offsets, sample_weights = _whole(slots, values, offsets, sample_weights)
    check_apart([*weights, *first, *second], [values, offsets, slots])
    lookup = slots, values, offsets, sample_weights, num_features
    Tables(*tables).backward_(steps.contiguous(), *lookup, gradient, sequence_gradients, seed)


@torch.library.impl(_library, "sample_weight_gradient", "CPU")
def _weight_gradient(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor,
) -> Tensor:
    described = check_lookup(weights, slots, values, offsets, sample_weights, num_features)
    slots, values, offsets, sample_weights = _whole(slots, values, offsets, sample_weights)
    check_gradient(described, gradient, _batch(offsets, num_features))
    tables = Tables(weights, (), ())
    return tables.sample_weight_gradient(slots, values, offsets, num_features, gradient)


@torch.library.register_fake("megalith::embedding_forward", lib=_library)
def _(weights, slots, values, offsets, sample_weights, num_features, output_dim, dtype):  # type: ignore[no-untyped-def]
    check_devices([*weights, slots, values, offsets, sample_weights])
    return offsets.new_empty(_batch_of(offsets, num_features), output_dim, dtype=dtype)


@torch.library.register_fake("megalith::embedding_sequence", lib=_library)
def _(weights, slots, values, offsets, sample_weights, num_features, slot, dim, dtype):  # type: ignore[no-untyped-def]
    check_devices([*weights, slots, values, offsets, sample_weights])
    count = torch.library.get_ctx().new_dynamic_size()
    return offsets.new_empty(count, dim, dtype=dtype)


@torch.library.register_fake("megalith::embedding_backward_", lib=_library)
def _(weights, first, second, steps, slots, values, offsets, sample_weights, _, gradient, sequences, __):  # type: ignore[no-untyped-def]
    tables = *weights, *first, *second
    check_devices([*tables, steps, slots, values, offsets, sample_weights, gradient, *sequences])


@torch.library.register_fake("megalith::sample_weight_gradient", lib=_library)
def _(weights, slots, values, offsets, sample_weights, num_features, gradient):  # type: ignore[no-untyped-def]
    check_devices([*weights, slots, values, offsets, sample_weights, gradient])
    return values.new_empty(len(values), dtype=torch.float32)


def _batch_of(offsets: Tensor, num_features: int) -> int:
    check_bags(offsets, num_features)
    return (offsets.shape[0] - 1) // num_features


# On any other device the plain twins serve.
for _name, _twin in (
    ("embedding_forward", embedding_forward_twin),
    ("embedding_sequence", embedding_sequence_twin),
    ("embedding_backward_", embedding_backward_twin_),
    ("sample_weight_gradient", sample_weight_gradient_twin),
):
    _library.impl(_name, _twin, "CUDA")
