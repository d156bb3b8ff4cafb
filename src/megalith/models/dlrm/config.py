"""Settings of DLRM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from megalith.models.base import ModelConfig, ModelInputs
from megalith.models.layers.mlp import MLPConfig

if TYPE_CHECKING:
    from megalith.models.dlrm.model import DLRM


class DLRMConfig(ModelConfig):
    """The settings of DLRM in a recipe (`kind: dlrm`)."""

    kind: Literal["dlrm"] = "dlrm"
    bottom: MLPConfig = MLPConfig(layers=(256, 128))
    """Before its last layer, which always has `dim` columns as the embeddings have."""
    top: MLPConfig = MLPConfig(layers=(256, 128))
    """Scores what the interaction gives; a last layer of one column follows."""
    interaction: Literal["dot", "concat", "dot_concat"] = "dot"
    """What the top MLP reads: pairwise dot products and the bottom's vector, all vectors side by side, or
    the dot products and all vectors."""
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the vectors' elements that a training step drops."""

    def build(self, inputs: ModelInputs) -> DLRM:
        """The module, with fresh weights."""
        from megalith.models.dlrm.model import DLRM

        return DLRM(self, inputs)
