"""Norms of table gradients, and clipping them together with those of dense parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.optimizer.backward_twin import touched_rows
from megalith.ops.optimizer.column_sharded import ColumnShardedUpdate
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep

if TYPE_CHECKING:
    from megalith.embeddings.collection import EmbeddingCollection


class GradientNorms:
    """Norms of the summed gradients of rows, by the kernels that add them up for a step.

    A step of row-wise AdaGrad over column shards gives squared norms of rows in its first half, in which
    nothing is written.
    """

    def __init__(self, weights: Sequence[Tensor], descriptors: Tensor) -> None:
        self._weights, self._descriptors = list(weights), descriptors
        self._native: ColumnShardedUpdate | None = None
        if all(weight.device.type == "cpu" for weight in weights):
            none = [torch.empty(0)] * len(weights)
            columns = [weight.shape[1] for weight in weights]
            sections = [(table, 0, len(weight)) for table, weight in enumerate(weights)]
            self._native = ColumnShardedUpdate(weights, none, none, descriptors, columns, sections)
        step = OptimizerStep(kind=OPTIMIZER_KINDS.index("rowwise_adagrad"), lr=0.0)
        self._steps = torch.tensor([step] * len(weights), dtype=torch.float32)

    def __call__(self, batch: LookupBatch, gradients: OutputGradients) -> Tensor:
        """The norm over all touched rows of all tables."""
        if self._native is not None:
            squares = torch.cat(self._native.begin(self._steps, batch, gradients))
        else:
            touched = touched_rows(self._weights, self._descriptors, batch, gradients)
            parts = [own.gradients.square().sum(1) for own in touched.values()]
            squares = torch.cat(parts) if parts else torch.zeros(0)
        return squares.double().sum().sqrt().float()


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], collections: Iterable[EmbeddingCollection], max_norm: float
) -> Tensor:
    """Scales gradients of parameters and of tables down to one norm over all of them; returns what it was.

    The collections are made with `accumulate=True`: their gradients wait for `step()`.
    """
    dense = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    tables = list(collections)
    if not max_norm > 0:
        raise ConfigError(f"max_norm is {max_norm}; give a number above 0.")
    gradients = [parameter.grad for parameter in dense if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient.detach().float()) for gradient in gradients]
    norms += [collection.gradient_norm() for collection in tables]
    total = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())
    factor = float(max_norm / (total + 1e-6))
    if factor < 1 or factor != factor:
        with torch.no_grad():
            for gradient in gradients:
                gradient.mul_(factor)
        for collection in tables:
            collection.scale_gradients_(factor)
    return total
