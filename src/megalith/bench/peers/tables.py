"""The tables that are measured: ours, FBGEMM's and plain torch's.

Each candidate reads the same values and offsets and makes one exact optimizer step. FBGEMM does what we do,
row-wise AdaGrad fused into the backward pass; torch has no row-wise AdaGrad for sparse gradients, so its
element-wise one stands for what a user of plain torch runs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.bench.peers.lookup import EPS, LEARNING_RATE, LookupIds, LookupShape
from megalith.core.schema import TableSpec
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import RowWiseAdaGrad


class Megalith:
    """Our collection as users call it, its check of every index included."""

    def __init__(self, shape: LookupShape) -> None:
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

    def forward(self, ids: LookupIds) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""
        output: Tensor = self.embeddings(ids.values, ids.offsets)
        return output

    def backward(self, output: Tensor, ids: LookupIds) -> None:
        """Updates every touched row, by row-wise AdaGrad."""
        output.backward(ids.gradient)

    def weights(self) -> list[Tensor]:
        """The rows of each table."""
        return [self.embeddings.weight(table.name) for table in self.embeddings.tables]


class Fbgemm:
    """FBGEMM's table-batched embedding on the CPU, as TorchRec uses it; it checks indices by default too."""

    def __init__(self, shape: LookupShape) -> None:
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

    def forward(self, ids: LookupIds) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""
        output: Tensor = self.tables(ids.values, ids.offsets)
        return output

    def backward(self, output: Tensor, ids: LookupIds) -> None:
        """Updates every touched row, by row-wise AdaGrad."""
        output.backward(ids.gradient)

    def weights(self) -> list[Tensor]:
        """The rows of each table."""
        split: list[Tensor] = self.tables.split_embedding_weights()
        return split


class TorchBags:
    """An nn.EmbeddingBag with sparse gradients for each table, and torch's Adagrad."""

    def __init__(self, shape: LookupShape) -> None:
        # Torch warns that it does not check unless it is told not to.
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

    def forward(self, ids: LookupIds) -> Tensor:
        """Pooled vectors [batch, tables * dim]."""
        return torch.cat(self.pooled(ids.values, ids.offsets), dim=1)

    def pooled(self, values: Tensor, offsets: Tensor) -> list[Tensor]:
        """One [batch, dim] for each table."""
        pooled = []
        for number, bag in enumerate(self.bags):
            own = offsets[number * self.batch : (number + 1) * self.batch + 1]
            first, last = int(own[0]), int(own[-1])
            pooled.append(bag(values[first:last], own - first))
        return pooled

    def backward(self, output: Tensor, ids: LookupIds) -> None:
        """Updates every touched row, by element-wise AdaGrad."""
        self.optimizer.zero_grad(set_to_none=True)
        output.backward(ids.gradient)
        self.optimizer.step()

    def weights(self) -> list[Tensor]:
        """The rows of each table."""
        return [parameter.detach() for parameter in self.bags.parameters()]
