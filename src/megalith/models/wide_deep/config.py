"""Settings of Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from megalith.core.schema import FeatureSpec, TableSpec
from megalith.models.base import ModelConfig, ModelInputs
from megalith.models.layers.mlp import MLPConfig

if TYPE_CHECKING:
    from megalith.models.wide_deep.model import WideDeep


class WideDeepConfig(ModelConfig):
    """The settings of Wide & Deep in a recipe (`kind: wide_deep`)."""

    kind: Literal["wide_deep"] = "wide_deep"
    mlp: MLPConfig = MLPConfig(layers=(256, 128))
    """The deep side, beside the linear one."""

    def tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """Vectors of `dim` for the deep side, and one weight for each id (dim 1) for the wide one."""
        wide = self.tables_of_dim(features, dim=1, suffix=".wide", init_scale=0.0)
        return self.vector_tables(features) + wide

    def build(self, inputs: ModelInputs) -> WideDeep:
        """The module, with fresh weights."""
        from megalith.models.wide_deep.model import WideDeep

        return WideDeep(self, inputs)
