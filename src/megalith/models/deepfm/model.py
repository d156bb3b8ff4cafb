"""DeepFM: a linear term, all pairwise dot products, and an MLP over the same vectors, added up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.models.base import ClickModel, ModelInputs
from megalith.models.deepfm.config import DeepFMConfig
from megalith.models.layers.interaction import factorization_term
from megalith.models.layers.mlp import build_mlp


class DeepFM(ClickModel):
    """A linear term, pairwise dot products and an MLP, added up."""

    def __init__(self, config: DeepFMConfig, inputs: ModelInputs) -> None:
        super().__init__()
        self.dim = config.dim
        self.num_columns = inputs.num_features * config.dim
        self.linear = nn.Linear(inputs.num_dense, 1) if inputs.num_dense else None
        self.mlp = build_mlp(config.mlp, inputs.num_dense + self.num_columns, output_dim=1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logit of each sample."""
        vectors, weights = embedded[:, : self.num_columns], embedded[:, self.num_columns :]
        logits = self.mlp(torch.cat([dense, vectors], dim=1)).squeeze(1) + weights.sum(dim=1)
        if self.linear is not None:
            logits = logits + self.linear(dense).squeeze(1)
        return logits + factorization_term(vectors.unflatten(1, (-1, self.dim)))
