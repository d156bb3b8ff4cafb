"""Every kind of model that a recipe can name, and how one is built."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from megalith.core.errors import ConfigError
from megalith.models.base import ClickModel, ModelInputs
from megalith.models.custom import CustomConfig
from megalith.models.dcnv2.config import DCNv2Config
from megalith.models.deepfm.config import DeepFMConfig
from megalith.models.dlrm.config import DLRMConfig
from megalith.models.layers.projection import ProjectedModel
from megalith.models.wide_deep.config import WideDeepConfig

AnyModel = Annotated[
    DLRMConfig | DCNv2Config | DeepFMConfig | WideDeepConfig | CustomConfig, Field(discriminator="kind")
]


def build_model(model: AnyModel, inputs: ModelInputs) -> ClickModel:
    """A recipe's model, with fresh weights; layers before it bring vectors of other dims to its own."""
    settings = model.load() if isinstance(model, CustomConfig) else model
    built = settings.build(inputs)
    if all(dim == settings.dim for dim in settings.dims.values()):
        return built
    tables = settings.tables(inputs.features)
    # Tables of dim 1 beside the vectors, as DeepFM has, are none of these.
    vectors = {table.name: table.dim for table in settings.vector_tables(inputs.features)}
    projected = [table for table in tables if vectors.get(table.name) == table.dim != settings.dim]
    for name, dim in settings.dims.items():
        if dim != settings.dim and not any(name in table.features for table in projected):
            raise ConfigError(
                f"model.dims gives '{name}' {dim} columns, but no table of this model has them; make its "
                "tables with vector_tables(features), or leave dims out."
            )
    return ProjectedModel(built, tables, settings.dim, [table.name for table in projected])
