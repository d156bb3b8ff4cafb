"""DLRM: a bottom MLP makes the dense features one more vector; pairs interact; a top MLP scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.models.base import ClickModel, ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.interaction import DotInteraction
from megalith.models.layers.mlp import build_mlp


class DLRM(ClickModel):
    def __init__(self, config: DLRMConfig, inputs: ModelInputs) -> None:
        super().__init__()
        self.dim = config.dim
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.bottom: nn.Module | None = None
        if inputs.num_dense:
            self.bottom = nn.Sequential(build_mlp(config.bottom, inputs.num_dense, config.dim), nn.ReLU())
        num_vectors = inputs.num_features + (self.bottom is not None)
        self.interaction = None if config.interaction == "concat" else DotInteraction(num_vectors)
        # The first columns of all vectors side by side that the top reads: all, or the bottom's alone.
        self.kept_columns = num_vectors * config.dim
        if config.interaction == "dot":
            self.kept_columns = 0 if self.bottom is None else config.dim
        num_pairs = 0 if self.interaction is None else self.interaction.output_dim
        self.top = build_mlp(config.top, self.kept_columns + num_pairs, output_dim=1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        vectors = self.dropout(embedded)
        if self.bottom is not None:
            vectors = torch.cat([self.bottom(dense), vectors], dim=1)
        joined = vectors
        if self.interaction is not None:
            pairs = self.interaction(vectors.view(len(vectors), -1, self.dim))
            joined = torch.cat([vectors[:, : self.kept_columns], pairs], dim=1)
        return self.top(joined).squeeze(1)
