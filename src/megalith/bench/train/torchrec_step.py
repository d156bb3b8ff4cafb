"""One training step of DLRM in TorchRec, as it would run on one machine.

Its tables are sharded table-wise over a group of one process, FBGEMM's fused kernel inside. Its batches are
built before the clock starts, and nothing wraps its dense part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from megalith.bench.peers.lookup import EPS, LEARNING_RATE, LookupShape
from megalith.bench.train.candidates import MegalithStep, TrainCandidate, copy_tables
from megalith.bench.train.samples import BOTTOM, NUM_DENSE, TOP, TrainSamples, dense_optimizer


class TorchRecStep(TrainCandidate):
    """torchrec.models.dlrm.DLRM, its tables sharded over the process group of this one process."""

    def __init__(self, shape: LookupShape, ours: MegalithStep) -> None:
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints
        from torchrec.models.dlrm import DLRM
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
        from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

        self.keys = [f"f{number}" for number in range(shape.tables)]
        tables = [
            EmbeddingBagConfig(
                name=f"t{number}", embedding_dim=shape.dim, num_embeddings=shape.rows, feature_names=[key]
            )
            for number, key in enumerate(self.keys)
        ]
        model = DLRM(
            EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
            NUM_DENSE,
            [*BOTTOM, shape.dim],
            [*TOP, 1],
            dense_device=torch.device("cpu"),
        )
        options = {"lr": LEARNING_RATE, "eps": EPS}
        apply_optimizer_in_backward(RowWiseAdagrad, model.sparse_arch.parameters(), options)
        wanted = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=1, compute_device="cpu"),
            constraints={table.name: wanted for table in tables},
        )
        sharders: list[Any] = [EmbeddingBagCollectionSharder()]
        self.model = DistributedModelParallel(
            model,
            device=torch.device("cpu"),
            plan=planner.plan(model, sharders),
            sharders=sharders,
            init_data_parallel=False,
        )
        inner = self.model.module
        self.dense_optimizer = dense_optimizer(nn.ModuleList([inner.dense_arch, inner.over_arch]))
        (kernel,) = inner.sparse_arch.embedding_bag_collection._lookups[0]._emb_modules
        copy_tables(kernel._emb_module.split_embedding_weights(), ours)
        copy_dense(ours.dense, inner, shape)

    def prepare(self, batch: TrainSamples) -> None:
        """Builds the KeyedJaggedTensor that a data loader would deliver."""
        from torchrec import KeyedJaggedTensor

        self.sparse = KeyedJaggedTensor(
            self.keys, batch.values, lengths=batch.offsets.diff(), offsets=batch.offsets
        )

    def logits(self, batch: TrainSamples) -> Tensor:
        """Forward pass: the logit of each sample."""
        logits: Tensor = self.model(batch.dense, self.sparse).squeeze(1)
        return logits


@torch.no_grad()
def copy_dense(source: nn.Module, model: Any, shape: LookupShape) -> None:
    """Our dense weights into TorchRec's model, whose pairs of vectors come in another order."""
    targets = [*model.dense_arch.parameters(), *model.over_arch.parameters()]
    for own, value in zip(targets, source.parameters(), strict=True):
        own.copy_(value)
    # We list pair (b, a) of a < b by b, TorchRec by a.
    first, second = torch.triu_indices(shape.tables + 1, shape.tables + 1, offset=1)
    pairs = second * (second - 1) // 2 + first
    weight = next(model.over_arch.parameters())
    weight[:, shape.dim :] = weight[:, shape.dim + pairs]
