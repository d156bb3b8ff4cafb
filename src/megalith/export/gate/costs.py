"""What each table and each layer costs: the trained model with that one alone in few bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.export.gate.samples import KeptSamples, Quality, quality
from megalith.export.interpret import run_program
from megalith.export.manifest import FrozenTableRecord
from megalith.export.program import Linear, ModelProgram, Precision

_SAMPLES = 8192


class PartCost(NamedTuple):
    """A table or a layer, reduced alone."""

    name: str
    precision: str
    bytes: int
    float32_bytes: int
    ne_loss: float
    auc: float | None


def logits_of(program: ModelProgram, weights: Mapping[str, Tensor], dense: Tensor, pooled: Tensor) -> Tensor:
    """Logits of many samples, some at a time."""
    pieces = zip(dense.split(_SAMPLES), pooled.split(_SAMPLES), strict=True)
    with torch.inference_mode():
        return torch.cat([run_program(program, weights, *piece)[:, 0] for piece in pieces])


def with_precision(program: ModelProgram, layers: Mapping[str, Precision]) -> ModelProgram:
    """The program with some layers, by their output, in another precision."""
    operations = tuple(
        each.model_copy(update={"precision": layers[each.output]})
        if isinstance(each, Linear) and each.output in layers
        else each
        for each in program.operations
    )
    return program.model_copy(update={"operations": operations})


class CostMeter:
    """Measures single parts on samples that are kept."""

    def __init__(self, program: ModelProgram, weights: Mapping[str, Tensor], samples: KeptSamples) -> None:
        """`program` has all layers in float32."""
        self.program, self.weights, self.samples = program, weights, samples
        self.trained = self._quality(samples.logits)

    def _quality(self, logits: Tensor) -> Quality:
        return quality(logits, self.samples.labels, self.samples.weights)

    def table(self, record: FrozenTableRecord, columns: slice, rows: int) -> PartCost:
        """A table alone, whose columns of the pooled vectors are known."""
        pooled = self.samples.pooled.clone()
        pooled[:, columns] = self.samples.frozen[:, columns]
        found = self._quality(logits_of(self.program, self.weights, self.samples.dense, pooled))
        loss = found.loss(self.trained)
        return PartCost(record.name, record.precision, record.bytes, 4 * rows * record.dim, loss, found.auc)

    def layer(self, layer: Linear, precision: Precision) -> PartCost:
        """A layer alone."""
        program = with_precision(self.program, {layer.output: precision})
        found = self._quality(logits_of(program, self.weights, self.samples.dense, self.samples.pooled))
        numbers = self.weights[layer.weight].numel()
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[precision]
        return PartCost(
            layer.output, precision, size * numbers, 4 * numbers, found.loss(self.trained), found.auc
        )

    def whole(self, program: ModelProgram) -> Quality:
        """All tables frozen, layers as a program has them."""
        return self._quality(logits_of(program, self.weights, self.samples.dense, self.samples.frozen))


def pooled_columns(records: Sequence[FrozenTableRecord]) -> dict[str, slice]:
    """Which columns of the pooled vectors a table gives."""
    columns: dict[str, slice] = {}
    first = 0
    for record in records:
        last = first + record.dim * len(record.features)
        columns[record.name] = slice(first, last)
        first = last
    return columns


def worst_first(costs: Sequence[PartCost]) -> list[PartCost]:
    """By what each costs; of equals the first one first."""
    return sorted(costs, key=lambda cost: -cost.ne_loss)


Told = Callable[[str], None]
"""Is told what is being done."""
