"""Tables that are looked up and updated, ours and those of others, behind one small interface.

Each candidate reads the same values and offsets and makes one exact optimizer step. FBGEMM does what we do,
row-wise AdaGrad fused into the backward pass; torch has no row-wise AdaGrad for sparse gradients, so its
element-wise one stands for what a user of plain torch runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import DTYPE_BYTES, TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad

LEARNING_RATE, EPS = 0.01, 1e-8
OURS = "megalith"


@dataclass(frozen=True, slots=True)
class Shape:
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
        return self.tables * self.batch * self.lookups

    @property
    def row_bytes(self) -> int:
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def weight_bytes(self) -> int:
        return self.tables * self.rows * self.row_bytes

    @property
    def output_bytes(self) -> int:
        return self.batch * self.tables * self.dim * 4

    def __str__(self) -> str:
        ids = "uniform" if self.zipf is None else f"zipf {self.zipf:g}"
        kind = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"dim {self.dim}, {self.lookups} x {self.batch}, {self.rows:,} rows, {ids}{kind}"


@dataclass(frozen=True, slots=True)
class Ids:
    """One batch of ids, feature-major, and the gradient its lookup receives."""

    values: Tensor
    offsets: Tensor
    gradient: Tensor


class Candidate(Protocol):
    """Tables of one shape. Building one takes its memory; dropping it gives the memory back."""

    def forward(self, ids: Ids) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""

    def backward(self, output: Tensor, ids: Ids) -> None:
        """Updates every touched row."""

    def weights(self) -> Sequence[Tensor]:
        """The rows of each table, to set them or look at them."""


def timed_step(candidate: Candidate, ids: Ids) -> dict[str, float]:
    """Seconds of one forward and backward pass."""
    start = perf_counter()
    output = candidate.forward(ids)
    middle = perf_counter()
    candidate.backward(output, ids)
    end = perf_counter()
    return {"forward": middle - start, "backward": end - middle, "total": end - start}


class Megalith:
    """Our collection as users call it, its check of every index included."""

    def __init__(self, shape: Shape) -> None:
        tables = [
            TableSpec(
                name=f"t{number}",
                rows=shape.rows,
                dim=shape.dim,
                features=(f"f{number}",),
                dtype=shape.dtype,  # type: ignore[arg-type]
            )
            for number in range(shape.tables)
        ]
        optimizer = RowWiseAdaGrad(lr=LEARNING_RATE, eps=EPS)
        self.embeddings = EmbeddingCollection(tables, optimizer, stochastic_rounding=False)

    def forward(self, ids: Ids) -> Tensor:
        output: Tensor = self.embeddings(ids.values, ids.offsets)
        return output

    def backward(self, output: Tensor, ids: Ids) -> None:
        output.backward(ids.gradient)

    def weights(self) -> list[Tensor]:
        return [self.embeddings.weight(table.name) for table in self.embeddings.tables]


class Fbgemm:
    """FBGEMM's table-batched embedding on the CPU, as TorchRec uses it; it checks indices by default too."""

    def __init__(self, shape: Shape) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        spec = (shape.rows, shape.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [spec] * shape.tables,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPS,
            weights_precision=SparseType.FP16 if shape.dtype == "float16" else SparseType.FP32,
            stochastic_rounding=False,
        )

    def forward(self, ids: Ids) -> Tensor:
        output: Tensor = self.tables(ids.values, ids.offsets)
        return output

    def backward(self, output: Tensor, ids: Ids) -> None:
        output.backward(ids.gradient)

    def weights(self) -> list[Tensor]:
        split: list[Tensor] = self.tables.split_embedding_weights()
        return split


class TorchBags:
    """An nn.EmbeddingBag with sparse gradients for each table, and torch's Adagrad."""

    def __init__(self, shape: Shape) -> None:
        # Said aloud, or torch warns that it does not check.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self.batch = shape.batch
        dtype = torch.float16 if shape.dtype == "float16" else torch.float32
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(
                shape.rows, shape.dim, mode="sum", sparse=True, include_last_offset=True, dtype=dtype
            )
            for _ in range(shape.tables)
        )
        self.optimizer = torch.optim.Adagrad(self.bags.parameters(), lr=LEARNING_RATE, eps=EPS)

    def forward(self, ids: Ids) -> Tensor:
        return torch.cat(self.pooled(ids.values, ids.offsets), dim=1)

    def pooled(self, values: Tensor, offsets: Tensor) -> list[Tensor]:
        """One [batch, dim] for each table."""
        found = []
        for number, bag in enumerate(self.bags):
            own = offsets[number * self.batch : (number + 1) * self.batch + 1]
            first, last = int(own[0]), int(own[-1])
            found.append(bag(values[first:last], own - first))
        return found

    def backward(self, output: Tensor, ids: Ids) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        output.backward(ids.gradient)
        self.optimizer.step()

    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.bags.parameters()]


PEERS = ("fbgemm", "torch")
_PACKAGES = {"fbgemm": "fbgemm_gpu", "torchrec": "torchrec", "torch": "torch"}


def choose_peers(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The peers to run: those named, in `a,b` or one by one, or all that are installed where none is."""
    names = [name.strip() for one in wanted for name in one.split(",") if name.strip()]
    for name in names:
        if name not in (*known, "none"):
            raise ConfigError(f"--peer {name} is no peer here; {nearest(name, [*known, 'none'])}")
        if name != "none" and find_spec(_PACKAGES[name]) is None:
            raise ConfigError(f"--peer {name} is not installed; run `make bench` once, or leave it out.")
    if names:
        return [name for name in known if name in names]
    return [name for name in known if find_spec(_PACKAGES[name])]


def unsupported(peer: str, shape: Shape) -> str | None:
    """Why a peer cannot run this shape, or None."""
    if peer == "fbgemm" and shape.dim % 4:
        return "not supported"
    if peer == "torch" and shape.dtype != "float32":
        return "not supported"
    return None


def bytes_needed(name: str, shape: Shape) -> int:
    """About what a candidate takes: its tables, its optimizer's state, and its gradients."""
    if name == "torch":
        # State as large as the tables, and a gradient for every id before equal ids are added up.
        return 2 * shape.weight_bytes + 2 * shape.num_values * shape.dim * 4 + 2 * shape.output_bytes
    return shape.weight_bytes + 4 * shape.tables * shape.rows + 64 * shape.num_values + 2 * shape.output_bytes


def build(name: str, shape: Shape) -> Any:
    """A candidate by name."""
    return {OURS: Megalith, "fbgemm": Fbgemm, "torch": TorchBags}[name](shape)
