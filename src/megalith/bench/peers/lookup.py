"""One lookup over many tables: its shape, a batch of it, and what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from torch import Tensor

from megalith.core.schema import DTYPE_BYTES

LEARNING_RATE, EPS = 0.01, 1e-8
OURS = "megalith"


@dataclass(frozen=True, slots=True)
class LookupShape:
    """One lookup: every table has one feature, and every bag the same number of ids."""

    tables: int
    rows: int
    dim: int
    batch: int
    lookups: int
    zipf: float | None = None
    """Exponent of the ids' distribution; None draws them uniformly."""
    dtype: str = "float32"

    @property
    def num_values(self) -> int:
        """Ids of a batch, over all tables."""
        return self.tables * self.batch * self.lookups

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of a table."""
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tables, without optimizer state."""
        return self.tables * self.rows * self.row_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of the pooled vectors of a batch, in single precision."""
        return self.batch * self.tables * self.dim * 4

    def __str__(self) -> str:
        ids = "uniform" if self.zipf is None else f"zipf {self.zipf:g}"
        kind = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"dim {self.dim}, {self.lookups} x {self.batch}, {self.rows:,} rows, {ids}{kind}"


@dataclass(frozen=True, slots=True)
class LookupIds:
    """One batch of ids, feature-major, and the gradient its lookup receives."""

    values: Tensor
    offsets: Tensor
    gradient: Tensor


class LookupCandidate(Protocol):
    """Tables of one shape. Building one takes its memory; dropping it gives the memory back."""

    def forward(self, ids: LookupIds) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""

    def backward(self, output: Tensor, ids: LookupIds) -> None:
        """Updates every touched row."""

    def weights(self) -> Sequence[Tensor]:
        """The rows of each table, to set them or look at them."""


def timed_step(candidate: LookupCandidate, ids: LookupIds) -> dict[str, float]:
    """Seconds of one forward and backward pass."""
    start = perf_counter()
    output = candidate.forward(ids)
    middle = perf_counter()
    candidate.backward(output, ids)
    end = perf_counter()
    return {"forward": middle - start, "backward": end - middle, "total": end - start}
