"""How a lookup is described to the operators: an int64 row for each (table, feature), and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

POOLINGS = ("sum", "mean", "max", "none")
LAYOUTS = ("whole", "chunked")
"""How the rows of a table lie in memory: in one tensor, or in a pool of chunked rows (ops/chunks)."""


class LookupDescriptor(NamedTuple):
    """A lookup of one feature in one table, as csrc/embedding/lookup.h has it."""

    table: int
    rows: int
    dim: int
    pooling: int
    """Position in POOLINGS."""
    dtype: int
    """Position in `tensors.STORED_DTYPES`."""
    feature: int
    column: int
    """First column of the pooled output, or -1."""
    sequence: int
    """Which of the outputs that do not pool, or -1."""
    padding: int
    """An id that reads as zeros and is never updated, or -1."""
    layout: int = 0
    """Position in LAYOUTS; ids of chunked rows are slots of their pool."""


class LookupBatch(NamedTuple):
    """The ids of a batch: bag n = feature * size + sample covers values[offsets[n] : offsets[n + 1]]."""

    values: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    """A factor for each value."""
    num_features: int

    @property
    def size(self) -> int:
        """Samples in the batch."""
        return (len(self.offsets) - 1) // self.num_features


class OutputGradients(NamedTuple):
    """What a backward pass is given; None where nothing depended on an output."""

    pooled: Tensor | None
    """[batch, output_dim]"""
    sequences: Sequence[Tensor | None] = ()
    """[ids, dim] of each lookup that does not pool."""

    def touching(self, descriptors: Tensor) -> Tensor:
        """Those of the lookups whose outputs have a gradient: a step is taken on their rows."""
        numbers = descriptors[:, LookupDescriptor._fields.index("sequence")].tolist()
        kept = [self.pooled is not None if n < 0 else self.sequences[n] is not None for n in numbers]
        return descriptors if all(kept) else descriptors[[n for n, keep in enumerate(kept) if keep]]


def descriptors_of(descriptors: Tensor) -> list[LookupDescriptor]:
    """The rows of the tensor that the operators take."""
    return [LookupDescriptor(*row) for row in descriptors.tolist()]
