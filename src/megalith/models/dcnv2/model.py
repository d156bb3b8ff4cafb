"""DCN-v2: explicit crosses of all columns, with an MLP after them (stacked) or beside them (parallel)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megalith.models.base import ClickModel, ModelInputs
from megalith.models.dcnv2.config import DCNv2Config
from megalith.models.layers.cross import CrossNetwork
from megalith.models.layers.mlp import build_mlp


class DCNv2(ClickModel):
    """Crosses of all columns beside or before an MLP."""

    def __init__(self, config: DCNv2Config, inputs: ModelInputs) -> None:
        super().__init__()
        width = inputs.num_dense + inputs.num_features * config.dim
        self.parallel = config.structure == "parallel"
        self.dropout = nn.Dropout(config.input_dropout)
        self.cross = CrossNetwork(width, config.num_crosses, config.rank)
        self.mlp = build_mlp(config.mlp, width)
        deep = config.mlp.output_dim(width)
        self.head = nn.Linear(deep + width if self.parallel else deep, 1)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logit of each sample."""
        start = self.dropout(torch.cat([dense, embedded], dim=1))
        crossed = self.cross(start)
        last = torch.cat([crossed, self.mlp(start)], dim=1) if self.parallel else self.mlp(crossed)
        return self.head(last).squeeze(1)
