"""DLRM: a bottom MLP makes the dense features one more vector; vectors interact; a top MLP scores.

With `interaction: dcn` it is DLRM-DCNv2, MLPerf's dlrm-v2: low-rank crosses of all vectors side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.models.base import ClickModel, ModelInputs
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.cross import CrossNetwork
from megalith.models.layers.linear import LinearReLU
from megalith.models.layers.mlp import build_mlp
from megalith.ops.interaction.dot import dot_interaction


class DLRM(ClickModel):
    """Dot products of all pairs of vectors, or crosses of their columns, scored by an MLP."""

    def __init__(self, config: DLRMConfig, inputs: ModelInputs) -> None:
        super().__init__()
        self.dim = config.dim
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.bottom: nn.Module | None = None
        if inputs.num_dense:
            stack = build_mlp(config.bottom, inputs.num_dense)
            width = config.bottom.output_dim(inputs.num_dense)
            self.bottom = nn.Sequential(*stack, LinearReLU(width, config.dim))
        num_vectors = inputs.num_features + (self.bottom is not None)
        self.interaction = config.interaction
        # What the top reads: the bottom's vector or all vectors, then the products of all pairs.
        num_kept = num_vectors if config.interaction != "dot" else int(self.bottom is not None)
        num_pairs = 0
        if config.interaction in ("dot", "dot_concat"):
            num_pairs = num_vectors * (num_vectors - 1) // 2
        self.cross: CrossNetwork | None = None
        if config.interaction == "dcn":
            self.cross = CrossNetwork(num_kept * config.dim, config.num_crosses, config.rank)
        self.top = build_mlp(config.top, num_kept * config.dim + num_pairs, output_dim=1)

    def begin(self, dense: Tensor) -> Tensor | None:
        """The bottom MLP: it needs the dense features alone."""
        return None if self.bottom is None else self.bottom(dense)

    def forward(self, dense: Tensor, embedded: Tensor, bottom: Tensor | None = None) -> Tensor:
        """The logit of each sample."""
        vectors = self.dropout(embedded)
        bottom = self.begin(dense) if bottom is None else bottom
        parts = [] if bottom is None else [bottom]
        if self.interaction in ("concat", "dcn"):
            beside = torch.cat([*parts, vectors], dim=1)
            return self.top(beside if self.cross is None else self.cross(beside)).squeeze(1)
        joined = dot_interaction(bottom, vectors, self.dim)
        if self.interaction == "dot_concat":
            joined = torch.cat([joined, vectors], dim=1)
        return self.top(joined).squeeze(1)
