"""Wide & Deep: a linear model over ids and numbers, and an MLP over their vectors, added up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.models.base import ClickModel, ModelInputs
from megalith.models.layers.mlp import build_mlp
from megalith.models.wide_deep.config import WideDeepConfig


class WideDeep(ClickModel):
    """A linear model and an MLP, added up."""

    def __init__(self, config: WideDeepConfig, inputs: ModelInputs) -> None:
        super().__init__()
        self.num_columns = inputs.num_features * config.dim
        self.wide = nn.Linear(inputs.num_dense, 1) if inputs.num_dense else None
        self.deep = build_mlp(config.mlp, inputs.num_dense + self.num_columns, output_dim=1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logit of each sample."""
        vectors, weights = embedded[:, : self.num_columns], embedded[:, self.num_columns :]
        logits = self.deep(torch.cat([dense, vectors], dim=1)).squeeze(1) + weights.sum(dim=1)
        if self.wide is not None:
            logits = logits + self.wide(dense).squeeze(1)
        return logits
