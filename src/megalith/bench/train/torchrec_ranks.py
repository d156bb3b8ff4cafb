"""TorchRec's training step on several processes, as its users write it.

Its DLRM under DistributedModelParallel: tables by its own planner, all of the kind that is asked for, the
dense part under DDP. TrainPipelineSparseDist exchanges the ids of the next batch ahead, as our trainer does.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from megalith.bench.peers.lookup import EPS, LEARNING_RATE, LookupShape
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP, dense_optimizer
from megalith.bench.train.torchrec_step import copy_dense
from megalith.data.batch import Batch

KINDS = ("table_wise", "column_wise")
"""What TorchRec does on the CPU with tables that the backward pass updates."""


class TorchRecRank:
    """One rank of TorchRec; `turn` takes a step with every batch that was given to `ready`."""

    def __init__(
        self,
        shape: LookupShape,
        kind: str,
        world_size: int,
        dense: nn.Module,
        start_values: Callable[[str], Tensor],
    ) -> None:
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
        from torchrec.models.dlrm import DLRM, DLRMTrain
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        cpu = torch.device("cpu")
        self.keys = [f"f{number}" for number in range(shape.tables)]
        tables = [
            EmbeddingBagConfig(
                name=key, embedding_dim=shape.dim, num_embeddings=shape.rows, feature_names=[key]
            )
            for key in self.keys
        ]
        bags = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        model = DLRM(bags, NUM_DENSE, [*BOTTOM, shape.dim], [*TOP, 1], dense_device=cpu)
        copy_dense(dense, model, shape)
        apply_optimizer_in_backward(
            RowWiseAdagrad, model.sparse_arch.parameters(), {"lr": LEARNING_RATE, "eps": EPS}
        )
        wanted = ParameterConstraints(
            sharding_types=[kind],
            compute_kernels=["fused"],
            min_partition=max(shape.dim // world_size, 1) if kind == "column_wise" else None,
        )
        sharders: list[Any] = [EmbeddingBagCollectionSharder()]
        topology = Topology(world_size=world_size, compute_device="cpu")
        planner = EmbeddingShardingPlanner(
            topology=topology, constraints={table.name: wanted for table in tables}
        )
        train = DLRMTrain(model)
        self.model = DistributedModelParallel(
            train, device=cpu, plan=planner.collective_plan(train, sharders), sharders=sharders
        )
        inner = self.model.module.model
        sharded = inner.sparse_arch.embedding_bag_collection
        copy_shards(sharded.state_dict(), start_values)
        optimizer = dense_optimizer(nn.ModuleList([inner.dense_arch, inner.over_arch]))
        self._pipeline: Any = TrainPipelineSparseDist(self.model, optimizer, cpu)
        self._given: deque[Any] = deque()
        self._batches = self._stream()
        self.losses: list[Tensor] = []

    def ready(self, batches: Sequence[Batch]) -> None:
        """Builds the batches of the coming turn, as a data loader would have done."""
        from torchrec import KeyedJaggedTensor
        from torchrec.datasets.utils import Batch as TorchRecBatch

        for batch in batches:
            sparse = KeyedJaggedTensor(
                self.keys, batch.values, lengths=batch.offsets.diff(), offsets=batch.offsets
            )
            self._given.append(TorchRecBatch(batch.dense, sparse, batch.labels))

    def turn(self, num_steps: int) -> None:
        """Trains so many steps through TorchRec's pipeline."""
        for _ in range(num_steps):
            loss, _, _ = self._pipeline.progress(self._batches)
            self.losses.append(loss)

    def _stream(self) -> Iterator[Any]:
        while True:
            yield self._given.popleft()


@torch.no_grad()
def copy_shards(state: dict[str, Any], start_values: Callable[[str], Tensor]) -> None:
    """Our start values into the rectangles of tables that lie on this rank."""
    for key, tensor in state.items():
        # embedding_bags.NAME.weight
        values = start_values(key.split(".")[1])
        for shard in tensor.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(values[row : row + rows, column : column + columns])


@contextmanager
def quiet() -> Iterator[None]:
    """TorchRec warns of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("torchrec", "torch.fx._symbolic_trace"):
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
