"""The dense part of a frozen model as it will be served, for the gate: what it checks is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from megalith.export.backends.kernels.as_trained import TrainedProducts, is_reduced
from megalith.export.backends.kernels.description import dense_description
from megalith.export.program import DENSE, EMBEDDED, ModelProgram
from megalith.export.stored_weights import PRODUCTS
from megalith.ops.dense.operations import DenseOutput
from megalith.ops.dense.program import DenseProgram


class DenseOutputs(NamedTuple):
    """[samples, tasks]: logits, and what is served of them."""

    logits: Tensor
    served: Tensor


class FrozenDense:
    """A program on batches: by torch's products as in training, or by the native program."""

    def __init__(self, program: ModelProgram, weights: Mapping[str, Tensor], *, as_trained: bool) -> None:
        """`as_trained`: layers of float32 give the bits that the run gives."""
        self._trained: TrainedProducts | None = None
        if as_trained and not is_reduced(program):
            self._trained = TrainedProducts(program, weights)
            return
        self._inputs = tuple(program.inputs)
        described = dense_description(program, weights, PRODUCTS)
        plain = tuple(DenseOutput(each.value, probability=False) for each in described.outputs)
        self._native = DenseProgram(replace(described, outputs=(*plain, *described.outputs)))

    def __call__(self, dense: Tensor, pooled: Tensor) -> DenseOutputs:
        """Both of numbers [samples, numbers] and pooled vectors [samples, columns]."""
        if self._trained is not None:
            logits = self._trained.logits(dense, pooled)
            return DenseOutputs(logits, self._trained.served(logits))
        given = {DENSE: dense, EMBEDDED: pooled}
        found = self._native.run(*(given[name] for name in self._inputs))
        return DenseOutputs(*found.tensor_split(2, dim=1))
