"""Settings of DeepFM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from megalith.core.schema import FeatureSpec, TableSpec
from megalith.models.base import ModelConfig, ModelInputs
from megalith.models.layers.mlp import MLPConfig

if TYPE_CHECKING:
    from megalith.models.deepfm.model import DeepFM


class DeepFMConfig(ModelConfig):
    """The settings of DeepFM in a recipe (`kind: deepfm`)."""

    kind: Literal["deepfm"] = "deepfm"
    mlp: MLPConfig = MLPConfig(layers=(256, 128))
    """The deep side, beside the factorization machine."""

    def tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """Vectors of `dim` for the pairs, and one weight for each id (dim 1) for the linear term."""
        linear = self.tables_of_dim(features, dim=1, suffix=".linear", init_scale=0.0)
        return self.vector_tables(features) + linear

    def build(self, inputs: ModelInputs) -> DeepFM:
        """The module, with fresh weights."""
        from megalith.models.deepfm.model import DeepFM

        return DeepFM(self, inputs)
