"""How a collection joins autograd: reads in the forward pass, updates its tables in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.embeddings.stores.resolved import ResolvedIds


class FusedTables(Protocol):
    """What the function below calls: tables that are read, and that update themselves from gradients."""

    def read(self, resolved: ResolvedIds) -> tuple[Tensor, ...]:
        """The pooled output, then the sequences."""

    def update(
        self, resolved: ResolvedIds, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        """One optimizer step on the touched rows, given the gradients of the outputs."""

    def sample_weight_gradient(self, resolved: ResolvedIds, pooled: Tensor) -> Tensor:
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
        resolved: ResolvedIds,
        sample_weights: Tensor | None,
    ) -> Any:
        """The outputs of `read`."""
        ctx.tables, ctx.resolved = tables, resolved
        outputs = tables.read(resolved)
        # Torch then refuses a second backward pass, and one after somebody wrote into them.
        ctx.save_for_backward(resolved.values, resolved.offsets, sample_weights)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Updates the rows; only sample weights get a gradient."""
        _ = ctx.saved_tensors
        tables: FusedTables = ctx.tables
        resolved: ResolvedIds = ctx.resolved
        if resolved.is_released:
            raise ConfigError(
                "The rows of this lookup may have left memory since its backward pass; look it up again."
            )
        pooled, *sequences = gradients
        weight_gradient = None
        if ctx.needs_input_grad[3] and pooled is not None:
            # Before the update: it is the rows as they were read that count.
            weight_gradient = tables.sample_weight_gradient(resolved, pooled)
        tables.update(resolved, pooled, sequences)
        resolved.release()
        return None, None, None, weight_gradient
