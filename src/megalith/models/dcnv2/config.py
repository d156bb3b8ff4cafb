"""Settings of DCN-v2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from megalith.models.base import ModelConfig, ModelInputs
from megalith.models.layers.mlp import MLPConfig

if TYPE_CHECKING:
    from megalith.models.dcnv2.model import DCNv2


class DCNv2Config(ModelConfig):
    """The settings of DCN-v2 in a recipe (`kind: dcnv2`)."""

    kind: Literal["dcnv2"] = "dcnv2"
    num_crosses: int = Field(default=3, ge=1)
    """Cross layers."""
    rank: int | None = Field(default=None, ge=1)
    """None: full cross matrices; else their rank."""
    structure: Literal["stacked", "parallel"] = "parallel"
    """The MLP reads what the crosses give (`stacked`), or the same input as they do (`parallel`)."""
    mlp: MLPConfig = MLPConfig(layers=(256, 128))
    """The deep side."""
    input_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the input's columns that a training step drops."""

    def build(self, inputs: ModelInputs) -> DCNv2:
        """The module, with fresh weights."""
        from megalith.models.dcnv2.model import DCNv2

        return DCNv2(self, inputs)
