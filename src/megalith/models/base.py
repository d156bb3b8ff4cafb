"""What every model shares: the settings of its tables, and how it is built.

A model never holds tables. It says which it needs, and reads their vectors as one [batch, output_dim] tensor
in that order; where the rows are stored does not concern it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from megalith.core.config import Config
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import FeatureSpec, Pooling, TableSpec, WeightType


class ModelInputs(NamedTuple):
    """What the data offers a model."""

    num_dense: int
    features: tuple[FeatureSpec, ...]

    @property
    def num_features(self) -> int:
        """Categorical features."""
        return len(self.features)


class ModelConfig(Config):
    """Base of a model's settings; a model of one's own derives from it too."""

    dim: int = Field(default=16, ge=1)
    """Columns of each feature's embedding."""
    dims: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By feature, other columns of its table; a linear layer without bias brings its vectors to `dim`."""
    pooling: Pooling = "sum"
    """What becomes of the vectors of a sample's ids where a feature has several; `none` is for models of
    one's own."""
    dtype: WeightType = "float32"
    """How weights of tables are stored."""
    init_scale: float | None = Field(default=None, ge=0, le=1e30)
    """Half-width of the uniform start values of tables; None takes 1/sqrt(rows), of dynamic tables 1/(16
    sqrt(dim))."""

    def tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """One table a feature, or for all that share a vocabulary, unless the model needs others."""
        return self.vector_tables(features)

    def build(self, inputs: ModelInputs) -> ClickModel:
        """The module, with fresh weights."""
        raise TypeError(f"{type(self).__name__} must define build(inputs).")

    def vector_tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """Tables of `dim` columns, or as `dims` says."""
        names = [feature.name for feature in features]
        for name in self.dims:
            if name not in names:
                raise ConfigError(f"model.dims names '{name}', which is no feature; {nearest(name, names)}")
        tables = self.tables_of_dim(features, self.dim)
        return [table.model_copy(update={"dim": self._dim_of(table)}) for table in tables]

    def tables_of_dim(
        self, features: Sequence[FeatureSpec], dim: int, suffix: str = "", init_scale: float | None = None
    ) -> list[TableSpec]:
        """A table of `dim` columns for each feature, named after it; those that share a vocabulary share it,
        under the name of the first."""
        sharers: dict[str, list[FeatureSpec]] = {}
        for feature in features:
            sharers.setdefault(feature.vocabulary or feature.name, []).append(feature)
        return [
            TableSpec(
                name=name + suffix,
                rows=members[0].num_ids or 0,
                dim=dim,
                features=tuple(feature.name for feature in members),
                pooling=self.pooling,
                dtype=self.dtype,
                init_scale=self.init_scale if init_scale is None else init_scale,
            )
            for name, members in sharers.items()
        ]

    def _dim_of(self, table: TableSpec) -> int:
        asked = {self.dims[name] for name in table.features if name in self.dims}
        if len(asked) > 1:
            raise ConfigError(
                f"model.dims gives several dims to {', '.join(table.features)}, which share a table."
            )
        return asked.pop() if asked else self.dim


class ClickModel(nn.Module):
    """Dense features [batch, num_dense] and embedding vectors [batch, output_dim] in, logits [batch] out."""

    def begin(self, dense: Tensor) -> Tensor | None:
        """What needs no vectors, computed while they travel from other ranks. A model that defines it takes
        the result as a third argument of `forward`, and computes it there if it gets none."""
        return None

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logit of each sample."""
        raise TypeError(f"{type(self).__name__} must define forward(dense, embedded).")
