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
        self.dim, self.num_features = config.dim, inputs.num_features
        self.bottom: nn.Module | None = None
        if inputs.num_dense:
            self.bottom = nn.Sequential(build_mlp(config.bottom, inputs.num_dense, config.dim), nn.ReLU())
        num_vectors = inputs.num_features + (self.bottom is not None)
        self.interaction = DotInteraction(num_vectors) if config.interaction == "dot" else None
        width = num_vectors * config.dim
        if self.interaction is not None:
            width = self.interaction.output_dim + (config.dim if self.bottom is not None else 0)
        self.top = build_mlp(config.top, width, output_dim=1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        if self.bottom is None:
            joined, bottom = embedded, None
        else:
            bottom = self.bottom(dense)
            joined = torch.cat([bottom, embedded], dim=1)
        if self.interaction is not None:
            pairs = self.interaction(joined.view(len(joined), -1, self.dim))
            joined = pairs if bottom is None else torch.cat([bottom, pairs], dim=1)
        return self.top(joined).squeeze(1)
