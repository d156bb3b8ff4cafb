"""The backward pass of embedding lookups, fused with the optimizer: `megalith::embedding_backward_`.

Gradients of outputs in, one optimizer step on every touched row out. It takes all of a collection's lookups,
those that pool and those that do not, and checks all it is given (`arguments.py`). The plain-torch twin is in
`backward_twin.py`, and serves on any other device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.arguments import check_lookup, contiguous_lookup
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.optimizer.arguments import check_update
from megalith.ops.optimizer.backward_twin import embedding_backward_twin_
from megalith.ops.tensors import check_devices, check_no_overlap

_library = torch.library.Library("megalith", "FRAGMENT")
_library.define(
    "embedding_backward_(Tensor(a!)[] weights, Tensor(b!)[] first, Tensor(c!)[] second, Tensor steps, "
    "Tensor descriptors, Tensor values, Tensor offsets, Tensor? sample_weights, int num_features, "
    "Tensor? gradient, Tensor?[] sequence_gradients, Tensor rounding) -> ()"
)

embedding_backward_ = torch.ops.megalith.embedding_backward_.default


@torch.library.impl(_library, "embedding_backward_", "CPU")
def _backward(
    weights: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
    rounding: Tensor,
) -> None:
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    gradients = OutputGradients(gradient, sequence_gradients)
    described = check_lookup(weights, descriptors, batch)
    tables = weights, first, second
    check_update(tables, steps, rounding, described, batch, gradients)
    descriptors, batch = contiguous_lookup(descriptors, batch)
    check_no_overlap([*weights, *first, *second], [batch.values, batch.offsets, descriptors])
    rounding = rounding.contiguous()
    NativeTables(*tables).backward_(steps.contiguous(), descriptors, batch, gradients, rounding)


@torch.library.register_fake("megalith::embedding_backward_", lib=_library)
def _(weights, first, second, steps, descriptors, values, offsets, factors, _, gradient, sequences, rounding):  # type: ignore[no-untyped-def]
    tables = *weights, *first, *second
    check_devices([*tables, steps, descriptors, values, offsets, factors, gradient, *sequences, rounding])


_library.impl("embedding_backward_", embedding_backward_twin_, "CUDA")
