"""Settings of DLRM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from megalith.models.base import ModelConfig, ModelInputs
from megalith.models.layers.mlp import MLPConfig

if TYPE_CHECKING:
    from megalith.models.dlrm.model import DLRM

_CROSSES = 3


class DLRMConfig(ModelConfig):
    """The settings of DLRM in a recipe (`kind: dlrm`)."""

    kind: Literal["dlrm"] = "dlrm"
    bottom: MLPConfig = MLPConfig(layers=(256, 128))
    """Before its last layer, which always has `dim` columns as the embeddings have."""
    top: MLPConfig = MLPConfig(layers=(256, 128))
    """Scores what the interaction gives; a last layer of one column follows."""
    interaction: Literal["dot", "concat", "dot_concat", "dcn"] = "dot"
    """What the top MLP reads: pairwise dot products and the bottom's vector, all vectors side by side, the
    dot products and all vectors, or cross layers over all vectors side by side, as MLPerf's dlrm-v2."""
    num_crosses: int = Field(default=_CROSSES, ge=1)
    """Cross layers of `interaction: dcn`; no other has them."""
    rank: int | None = Field(default=None, ge=1)
    """Of `interaction: dcn`. None: full cross matrices; else their rank, 512 in dlrm-v2."""
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the vectors' elements that a training step drops."""

    @model_validator(mode="after")
    def _crosses_are_of_dcn(self) -> DLRMConfig:
        for key, is_set in (("num_crosses", self.num_crosses != _CROSSES), ("rank", self.rank is not None)):
            if is_set and self.interaction != "dcn":
                raise ValueError(f"{key} is for interaction: dcn, not {self.interaction}; leave it out")
        return self

    def build(self, inputs: ModelInputs) -> DLRM:
        """The module, with fresh weights."""
        from megalith.models.dlrm.model import DLRM

        return DLRM(self, inputs)
