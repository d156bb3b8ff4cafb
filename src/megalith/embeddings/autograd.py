"""How a collection joins autograd: reads in the forward pass, updates its tables in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.embeddings.module.refusals import (
    refuse_double_backward,
    refuse_second_step,
    refuse_stale_rows,
)
from megalith.embeddings.stores.resolved import ResolvedIds


class FusedTables(Protocol):
    """What the function below calls: tables that are read, and that update themselves from gradients."""

    tables: tuple[TableSpec, ...]
    num_steps: int
    training: bool
    accumulate: bool

    @property
    def is_frozen(self) -> bool:
        """Whether no step is to be taken."""

    def read(self, resolved: ResolvedIds) -> tuple[Tensor, ...]:
        """The pooled output, then the sequences."""

    def take_gradients(
        self, resolved: ResolvedIds, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> None:
        """One optimizer step on the touched rows, now or with the gradients of other lookups."""

    def sample_weight_gradient(self, resolved: ResolvedIds, pooled: Tensor) -> Tensor:
        """The gradient of each sample weight, given that of the pooled output."""


def asks_for_step(ctx: Any) -> bool:
    """Whether a backward pass wants the gradient of the anchor, a function's first input.

    `needs_input_grad` says what may be wanted; `torch.autograd.grad` and `backward(inputs=...)` ask for less.
    """
    (anchor, _), *_ = ctx.next_functions
    if anchor is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(anchor))
    except RuntimeError:
        # `torch.autograd.grad` of the anchor itself: gradients are handed out, and nothing is trained.
        return False


class LookupFunction(torch.autograd.Function):
    """A lookup whose backward pass takes the optimizer step; `EmbeddingCollection.lookup` applies it.

    `anchor` is a tensor that wants a gradient while the tables train: autograd calls backward only for
    outputs that depend on one. A pass that does not ask for it, as `torch.autograd.grad` of other tensors
    does not, changes no row; nor does one of a lookup in `eval()`.
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
        ctx.trains, ctx.has_stepped, ctx.num_steps = tables.training, False, tables.num_steps
        outputs = tables.read(resolved)
        # Torch then refuses a second backward pass without retain_graph.
        ctx.save_for_backward(resolved.values, resolved.offsets, sample_weights)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Updates the rows; only sample weights get a gradient."""
        _ = ctx.saved_tensors
        refuse_double_backward()
        tables: FusedTables = ctx.tables
        resolved: ResolvedIds = ctx.resolved
        steps = ctx.trains and not tables.is_frozen and asks_for_step(ctx)
        if steps and ctx.has_stepped and not tables.accumulate:
            refuse_second_step()
        pooled, *sequences = gradients
        weight_gradient = None
        wants_weights = ctx.needs_input_grad[3]
        if resolved.is_released and (wants_weights or not tables.accumulate):
            raise ConfigError(
                "The rows of this lookup may have left memory since its backward pass; look it up again."
            )
        if tables.num_steps != ctx.num_steps:
            refuse_stale_rows(tables.tables, weighted=wants_weights)
        if wants_weights and pooled is not None:
            # Before the update: it is the rows as they were read that count.
            weight_gradient = tables.sample_weight_gradient(resolved, pooled)
        if steps:
            tables.take_gradients(resolved, pooled, sequences)
            ctx.has_stepped = True
        # None leaves the anchor without a gradient, so that optimizers pass it over; `torch.autograd.grad` of
        # all parameters gets one.
        return None if steps else torch.empty(0), None, None, weight_gradient
