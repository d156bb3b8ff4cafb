"""Random weights of a model's shape, of which every candidate gets the same.

Rates do not depend on values, so nothing is trained; scores of all candidates are compared all the same. Rows
are of int8 as they are stored here and in FBGEMM: [scale][bias][codes], scale and bias of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megalith.bench.serve.shapes import Request, ServedShape
from megalith.models.base import ModelInputs
from megalith.models.dlrm.model import DLRM
from megalith.ops.frozen.memory import resident

HEADER_BYTES = 4
_FIRST_ROWS = 1 << 16


class Layer(NamedTuple):
    """x W^T + b, then a ReLU or nothing."""

    weight: Tensor
    bias: Tensor | None
    relu: bool


@dataclass(frozen=True, slots=True)
class DenseLayers:
    """The dense part of a served model, layer by layer."""

    bottom: tuple[Layer, ...]
    crosses: tuple[tuple[Layer, ...], ...]
    """Of each cross the layers whose output is multiplied with what came in."""
    top: tuple[Layer, ...]
    """The last gives the logit."""

    @property
    def flops(self) -> int:
        """Of one sample."""
        layers = [*self.bottom, *(layer for cross in self.crosses for layer in cross), *self.top]
        return sum(2 * layer.weight.numel() for layer in layers)


class ServedWeights:
    """Rows of all tables, and the dense part."""

    def __init__(self, shape: ServedShape, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.rows = [_random_rows(rows, shape.dim, generator) for rows in shape.tables.rows]
        """uint8 [rows, 4 + dim] of each table."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = DLRM(shape.model, ModelInputs(shape.tables.numbers, shape.features)).eval()
        self.model.requires_grad_(False)
        self.layers = _layers(self.model)

    def floats(self, table: int) -> Tensor:
        """A table decoded: float32 [rows, dim]."""
        header, codes = self.split(table)
        return header[:, :1] * codes.float() + header[:, 1:]

    def split(self, table: int) -> tuple[Tensor, Tensor]:
        """Scale and bias as float32 [rows, 2], codes as uint8 [rows, dim]."""
        rows = self.rows[table]
        header = rows[:, :HEADER_BYTES].contiguous().view(torch.float16).float()
        return header, rows[:, HEADER_BYTES:].contiguous()


def pooled(weights: ServedWeights, request: Request) -> Tensor:
    """Pooled vectors in plain torch: [batch, tables * dim]."""
    columns = []
    for table, ids in enumerate(request.ids_of(weights.shape)):
        rows = weights.rows[table][torch.from_numpy(ids).long()]
        header = rows[..., :HEADER_BYTES].contiguous().view(torch.float16).float()
        columns.append((header[..., :1] * rows[..., HEADER_BYTES:].float() + header[..., 1:]).sum(dim=1))
    return torch.cat(columns, dim=1)


def _random_rows(rows: int, dim: int, generator: torch.Generator) -> Tensor:
    """Rows of which each reads as about -0.1 to 0.1; large tables repeat, which no cache can tell."""
    held = resident(torch.empty(rows, HEADER_BYTES + dim, dtype=torch.uint8))
    first = min(rows, _FIRST_ROWS)
    scales = 0.2 / 255 * (0.5 + torch.rand(first, 1, generator=generator))
    header = torch.cat([scales, -128 * scales], dim=1).half()
    held[:first, :HEADER_BYTES] = header.view(torch.uint8)
    held[:first, HEADER_BYTES:] = torch.randint(256, (first, dim), dtype=torch.uint8, generator=generator)
    for begin in range(first, rows, first):
        held[begin : begin + first] = held[: min(first, rows - begin)]
    return held


def _layers(model: DLRM) -> DenseLayers:
    assert isinstance(model.bottom, nn.Sequential)
    crosses = [] if model.cross is None else list(model.cross.layers)
    return DenseLayers(
        bottom=tuple(_layer(module, True) for module in model.bottom),
        crosses=tuple(
            tuple(
                _layer(module, False) for module in (cross if isinstance(cross, nn.Sequential) else [cross])
            )
            for cross in crosses
        ),
        top=tuple(_layer(module, place < len(model.top) - 1) for place, module in enumerate(model.top)),
    )


def _layer(module: nn.Module, relu: bool) -> Layer:
    assert isinstance(module, nn.Linear)
    return Layer(module.weight.detach(), None if module.bias is None else module.bias.detach(), relu)
