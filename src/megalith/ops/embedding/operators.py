"""Embedding lookups over many tables in one call, registered with torch.

`megalith::embedding_forward`, `embedding_sequence` and `sample_weight_gradient` are known to torch.compile
and opcheck. A lookup is described by `descriptors` (`LookupDescriptor`); forward takes those that pool. The
operators check all they are given (`arguments.py`); `NativeTables` checks nothing. The plain-torch twins are
in `twin.py`, and serve on any other device. The backward pass is in `megalith.ops.optimizer.backward`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.arguments import (
    check_bags,
    check_gradient,
    check_lookup,
    check_output,
    check_sequence,
    contiguous_lookup,
)
from megalith.ops.embedding.descriptors import LookupBatch
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.embedding.twin import (
    embedding_forward_twin,
    embedding_sequence_twin,
    sample_weight_gradient_twin,
)
from megalith.ops.tensors import check_devices

_library = torch.library.Library("megalith", "FRAGMENT")
_LOOKUP = "Tensor descriptors, Tensor values, Tensor offsets, Tensor? sample_weights, int num_features"
_library.define(f"embedding_forward(Tensor[] weights, {_LOOKUP}, int output_dim, ScalarType dtype) -> Tensor")
_library.define(
    f"embedding_sequence(Tensor[] weights, {_LOOKUP}, int number, int dim, ScalarType dtype) -> Tensor"
)
_library.define(f"sample_weight_gradient(Tensor[] weights, {_LOOKUP}, Tensor gradient) -> Tensor")

embedding_forward = torch.ops.megalith.embedding_forward.default
embedding_sequence = torch.ops.megalith.embedding_sequence.default
sample_weight_gradient = torch.ops.megalith.sample_weight_gradient.default


@torch.library.impl(_library, "embedding_forward", "CPU")
def _forward(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    output_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    described = check_lookup(weights, descriptors, batch)
    check_output(described, output_dim, dtype)
    return NativeTables(weights, (), ()).forward(*contiguous_lookup(descriptors, batch), output_dim, dtype)


@torch.library.impl(_library, "embedding_sequence", "CPU")
def _sequence(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    number: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    described = check_lookup(weights, descriptors, batch)
    check_sequence(described, number, dim, dtype)
    return NativeTables(weights, (), ()).sequence(*contiguous_lookup(descriptors, batch), number, dim, dtype)


@torch.library.impl(_library, "sample_weight_gradient", "CPU")
def _weight_gradient(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor,
) -> Tensor:
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    described = check_lookup(weights, descriptors, batch)
    check_gradient(described, gradient, batch.size)
    lookup = contiguous_lookup(descriptors, batch)
    return NativeTables(weights, (), ()).sample_weight_gradient(*lookup, gradient)


@torch.library.register_fake("megalith::embedding_forward", lib=_library)
def _(weights, descriptors, values, offsets, sample_weights, num_features, output_dim, dtype):  # type: ignore[no-untyped-def]
    check_devices([*weights, descriptors, values, offsets, sample_weights])
    check_bags(offsets, num_features)
    return offsets.new_empty((offsets.shape[0] - 1) // num_features, output_dim, dtype=dtype)


@torch.library.register_fake("megalith::embedding_sequence", lib=_library)
def _(weights, descriptors, values, offsets, sample_weights, num_features, number, dim, dtype):  # type: ignore[no-untyped-def]
    check_devices([*weights, descriptors, values, offsets, sample_weights])
    count = torch.library.get_ctx().new_dynamic_size()
    return offsets.new_empty(count, dim, dtype=dtype)


@torch.library.register_fake("megalith::sample_weight_gradient", lib=_library)
def _(weights, descriptors, values, offsets, sample_weights, num_features, gradient):  # type: ignore[no-untyped-def]
    check_devices([*weights, descriptors, values, offsets, sample_weights, gradient])
    return values.new_empty(len(values), dtype=torch.float32)


for _name, _twin in (
    ("embedding_forward", embedding_forward_twin),
    ("embedding_sequence", embedding_sequence_twin),
    ("sample_weight_gradient", sample_weight_gradient_twin),
):
    _library.impl(_name, _twin, "CUDA")
