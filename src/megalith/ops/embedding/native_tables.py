"""Tables in this machine's memory, and the lookups of the native core on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.steps import ChunkStep, packed_chunk_steps
from megalith.ops.embedding.descriptors import LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.tensors import STORED_DTYPES, address, addresses

_FEATURE, _SEQUENCE = (LookupDescriptor._fields.index(name) for name in ("feature", "sequence"))


_LINE = 64


def allocate_table(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """An uninitialised table on huge pages where the system has them: far fewer address translations."""
    weight = torch.empty(rows, dim, dtype=dtype)
    native.library().mg_advise_huge_pages(weight.data_ptr(), weight.numel() * weight.element_size())
    return weight


def allocate_zeros(rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    """A table of zeros on huge pages, of which the system gives those that are touched."""
    size = rows * dim * dtype.itemsize
    # Cache lines hold whole rows where these are as long as one.
    memory = np.zeros(size + _LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % _LINE
    table = torch.from_numpy(memory[begin : begin + size]).view(dtype).view(rows, dim)
    native.library().mg_advise_huge_pages(table.data_ptr(), size)
    return table


class NativeTables:
    """Tables whose addresses are found once, for callers that look up at every step.

    What the registered operators do, without handing every tensor through torch's dispatcher at each call:
    with small batches that costs more than the lookup. The tensors must not be replaced or resized, and
    nothing is checked: ids must have been, and offsets, descriptors and sample weights be contiguous.

    `slot_ids` holds the id of each row of tables whose rows are not in the order of ids; rounding at random
    depends on it. `pools` holds the pool of each table of chunked rows, whose tensors are empty and whose
    descriptors say so.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        slot_ids: Sequence[Tensor | None] | None = None,
        pools: Sequence[ChunkedRows | None] = (),
    ) -> None:
        native.share_torch_threads()
        self._core = native.library()
        ids = [None] * len(weights) if slot_ids is None else slot_ids
        self._tensors = [*weights, *first, *second, *ids]
        self._count = len(weights)
        self._weights, self._first, self._second = (addresses(some) for some in (weights, first, second))
        self._slot_ids = addresses(ids)
        self._pools = tuple(pools)
        for table, pool in enumerate(self._pools):
            if pool is not None:
                self._weights[table] = pool.kernel_address

    def forward(self, descriptors: Tensor, batch: LookupBatch, output_dim: int, dtype: torch.dtype) -> Tensor:
        """Pooled vectors [batch, output_dim] of the lookups that pool."""
        size = batch.size
        out = torch.empty(size, output_dim, dtype=dtype)
        values = batch.values.contiguous()
        self._core.mg_embedding_forward(
            *(descriptors.data_ptr(), len(descriptors), self._weights),
            *(values.data_ptr(), values.element_size(), batch.offsets.data_ptr()),
            *(
                address(batch.sample_weights),
                size,
                out.data_ptr(),
                STORED_DTYPES.index(dtype),
                output_dim,
                None,
            ),
        )
        return out

    def sequence(
        self, descriptors: Tensor, batch: LookupBatch, number: int, dim: int, dtype: torch.dtype
    ) -> Tensor:
        """A vector for every id of lookup `number`, which does not pool, [ids, dim]."""
        size, offsets = batch.size, batch.offsets
        descriptor = descriptors[number : number + 1].clone()
        descriptor[0, _SEQUENCE] = 0
        feature = int(descriptor[0, _FEATURE])
        count = int(offsets[(feature + 1) * size] - offsets[feature * size])
        out = torch.empty(count, dim, dtype=dtype)
        values = batch.values.contiguous()
        self._core.mg_embedding_forward(
            *(descriptor.data_ptr(), 1, self._weights, values.data_ptr(), values.element_size()),
            *(offsets.data_ptr(), None, size, None, STORED_DTYPES.index(dtype), 0, addresses([out])),
        )
        return out

    def backward_(
        self,
        steps: Tensor,
        descriptors: Tensor,
        batch: LookupBatch,
        gradients: OutputGradients,
        rounding: Tensor,
        chunk_steps: Sequence[ChunkStep] = (),
    ) -> None:
        """One optimizer step on every touched row; `rounding` has a `RowRounding` for each table.

        `chunk_steps`, one for each table, are what chunked rows need; without them their utilities stay.
        """
        if self._pools and not chunk_steps:
            chunk_steps = [ChunkStep()] * self._count
        chunked = packed_chunk_steps(chunk_steps) if chunk_steps else None
        values = batch.values.contiguous()
        dense = None if gradients.pooled is None else gradients.pooled.float().contiguous()
        sequences = [None if given is None else given.float().contiguous() for given in gradients.sequences]
        self._core.mg_embedding_backward(
            *(descriptors.data_ptr(), len(descriptors), self._count),
            *(self._weights, self._first, self._second),
            *(values.data_ptr(), values.element_size(), batch.offsets.data_ptr()),
            *(address(batch.sample_weights), batch.size),
            *(address(dense), 0 if dense is None else dense.shape[1], addresses(sequences)),
            *(steps.data_ptr(), rounding.data_ptr(), self._slot_ids, chunked),
        )

    def sample_weight_gradient(self, descriptors: Tensor, batch: LookupBatch, gradient: Tensor) -> Tensor:
        """The gradient of a factor for each value, whatever the factor was."""
        values, offsets, size = batch.values.contiguous(), batch.offsets, batch.size
        dense = gradient.float().contiguous()
        total = torch.zeros(len(values))
        again = torch.empty(0)
        seen = set()
        features = descriptors[:, _FEATURE].tolist()
        # Where no table pools there is no descriptor, and yet `split` would give a part.
        for descriptor, feature in zip(descriptors.split(1), features, strict=False):
            out, ids = total, slice(int(offsets[feature * size]), int(offsets[(feature + 1) * size]))
            if feature in seen:
                # A feature looked up in several tables adds up one table after the other.
                out = again = again if len(again) else torch.zeros(len(values))
                out[ids] = 0.0
            self._core.mg_sample_weight_gradient(
                *(descriptor.data_ptr(), 1, self._weights, values.data_ptr(), values.element_size()),
                *(offsets.data_ptr(), size, dense.data_ptr(), dense.shape[1], out.data_ptr()),
            )
            if feature in seen:
                total[ids] += out[ids]
            seen.add(feature)
        return total
