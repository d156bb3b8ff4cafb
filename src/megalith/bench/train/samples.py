"""The model of `megalith bench train`: its sizes, its start values and its random batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from megalith.bench.embedding.shapes import draw
from megalith.bench.peers.lookup import LEARNING_RATE, LookupShape
from megalith.core.schema import FeatureSpec
from megalith.models.base import ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.mlp import MLPConfig

NUM_DENSE = 13
BOTTOM, TOP = (512, 256), (512, 512, 256)


@dataclass(frozen=True, slots=True)
class TrainSamples:
    """One batch of training samples, ids feature-major."""

    dense: Tensor
    values: Tensor
    offsets: Tensor
    labels: Tensor


def draw_samples(shape: LookupShape, seed: int) -> TrainSamples:
    """A random batch: skewed or uniform ids, normal numbers, a quarter of clicks."""
    ids = draw(shape, seed)
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(shape.batch, NUM_DENSE, generator=generator)
    labels = (torch.rand(shape.batch, generator=generator) < 0.25).float()
    return TrainSamples(dense, ids.values, ids.offsets, labels)


def dense_model(shape: LookupShape) -> nn.Module:
    """Our DLRM, the same start values each time."""
    torch.manual_seed(0)
    features = tuple(FeatureSpec(name=f"f{n}", num_ids=shape.rows) for n in range(shape.tables))
    config = DLRMConfig(dim=shape.dim, bottom=MLPConfig(layers=BOTTOM), top=MLPConfig(layers=TOP))
    return config.build(ModelInputs(NUM_DENSE, features))


def dense_optimizer(module: nn.Module) -> torch.optim.Optimizer:
    """AdaGrad over the dense weights, as the peers run it."""
    return torch.optim.Adagrad(module.parameters(), lr=LEARNING_RATE)
