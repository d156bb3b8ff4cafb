"""A stack of linear layers with activation, normalisation and dropout between them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from megalith.core.config import Config
from megalith.models.layers.linear import LinearReLU

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class MLPConfig(Config):
    """`layers` are the widths; each is followed by norm, activation and dropout."""

    layers: tuple[int, ...] = (256, 128)
    """Width of each layer, the first one first."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Follows each layer."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Batch or layer normalisation before the activation."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the outputs of each layer that a training step drops."""

    def output_dim(self, input_dim: int) -> int:
        """Columns of the last layer; those of the input where there is no layer."""
        return self.layers[-1] if self.layers else input_dim


def build_mlp(config: MLPConfig, input_dim: int, output_dim: int | None = None) -> nn.Sequential:
    """The stack; with `output_dim`, a last linear layer without activation ends it."""
    blocks: list[nn.Module] = []
    width = input_dim
    for layer in config.layers:
        if config.norm == "none" and config.activation == "relu":
            blocks.append(LinearReLU(width, layer))
        else:
            blocks.append(nn.Linear(width, layer))
            if config.norm == "batch":
                blocks.append(nn.BatchNorm1d(layer))
            elif config.norm == "layer":
                blocks.append(nn.LayerNorm(layer))
            blocks.append(_ACTIVATIONS[config.activation]())
        if config.dropout:
            blocks.append(nn.Dropout(config.dropout))
        width = layer
    if output_dim is not None:
        blocks.append(nn.Linear(width, output_dim))
    return nn.Sequential(*blocks)
