"""How a collection joins autograd: reads in the forward pass, updates its tables in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class FusedTables(Protocol):
    """What the function below calls: tables that are read, and that update themselves from gradients."""

    def read(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None) -> tuple[Tensor, ...]:
        """The pooled output, then the sequences."""

    def update(
        self,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
    ) -> None:
        """One optimizer step on the touched rows, given the gradients of the outputs."""

    def sample_weight_gradient(
        self, values: Tensor, offsets: Tensor, sample_weights: Tensor, pooled: Tensor
    ) -> Tensor:
        """The gradient of each sample weight, given that of the pooled output."""


class LookupFunction(torch.autograd.Function):
    """A lookup whose backward pass takes the optimizer step; `EmbeddingCollection.lookup` applies it.

    `anchor` is a tensor that wants a gradient: autograd calls backward only for outputs that depend on one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tables: FusedTables,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
    ) -> Any:
        """The outputs of `read`."""
        ctx.tables = tables
        ctx.save_for_backward(values, offsets, sample_weights)
        ctx.set_materialize_grads(False)
        return tables.read(values, offsets, sample_weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Updates the rows; only sample weights get a gradient."""
        values, offsets, sample_weights = ctx.saved_tensors
        pooled, *sequences = gradients
        weight_gradient = None
        if ctx.needs_input_grad[4] and pooled is not None:
            # Before the update: it is the rows as they were read that count.
            weight_gradient = ctx.tables.sample_weight_gradient(values, offsets, sample_weights, pooled)
        ctx.tables.update(values, offsets, sample_weights, pooled, sequences)
        return None, None, None, None, weight_gradient
