"""What the registered backward pass refuses besides a bad lookup, each in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.embedding.arguments import check_gradient
from megalith.ops.embedding.descriptors import POOLINGS, LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep
from megalith.ops.optimizer.stochastic_rounding import RowRounding
from megalith.ops.tensors import FLOAT_DTYPES, check_tensor

_FULL_STATE = {"adagrad", "adam", "rowwise_adam", "lamb", "lars"}, {"adam", "lamb"}
_ROW_STATE = {"rowwise_adagrad"}, {"rowwise_adam"}


def check_update(
    tables: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    steps: Tensor,
    rounding: Tensor,
    described: Sequence[LookupDescriptor],
    batch: LookupBatch,
    gradients: OutputGradients,
) -> None:
    """Refuses faults of what a backward pass needs besides the lookup: states, settings, gradients."""
    _check_steps(tables, steps, described)
    check_tensor("rounding", rounding, (torch.int64,), 2)
    if tuple(rounding.shape) != (len(steps), len(RowRounding._fields)):
        raise ConfigError(
            f"rounding is {rounding.shape[0]} x {rounding.shape[1]}; pass {len(steps)} x "
            f"{len(RowRounding._fields)}."
        )
    if gradients.pooled is not None:
        check_gradient(described, gradients.pooled, batch.size)
    _check_sequence_gradients(described, batch, gradients.sequences)


def _check_steps(
    tables: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    steps: Tensor,
    described: Sequence[LookupDescriptor],
) -> None:
    weights, first, second = tables
    if not len(weights) == len(first) == len(second):
        raise ConfigError(
            f"There are {len(weights)} weights, {len(first)} first and {len(second)} second states; pass one "
            "of each for every table."
        )
    check_tensor("steps", steps, (torch.float32,), 2)
    if tuple(steps.shape) != (len(weights), len(OptimizerStep._fields)):
        raise ConfigError(
            f"steps is {steps.shape[0]} x {steps.shape[1]}; pass {len(weights)} x "
            f"{len(OptimizerStep._fields)}."
        )
    kinds = steps[:, 0].tolist()
    for table, kind in enumerate(kinds):
        if kind not in range(len(OPTIMIZER_KINDS)):
            raise ConfigError(
                f"steps[{table}] names optimizer {kind}, which is none of {len(OPTIMIZER_KINDS)}."
            )
    for lookup in described:
        kind, rows = OPTIMIZER_KINDS[int(kinds[lookup.table])], lookup.rows
        for name, states, full, row in zip(
            ("first", "second"), (first, second), _FULL_STATE, _ROW_STATE, strict=True
        ):
            wanted = rows * lookup.dim if kind in full else rows if kind in row else None
            if wanted is not None:
                _check_state(f"{name}[{lookup.table}]", states[lookup.table], wanted, kind)


def _check_sequence_gradients(
    described: Sequence[LookupDescriptor], batch: LookupBatch, sequence_gradients: Sequence[Tensor | None]
) -> None:
    size = batch.size
    edges = batch.offsets[::size].tolist() if size else [0] * (batch.num_features + 1)
    for number, lookup in enumerate(described):
        if lookup.pooling != POOLINGS.index("none"):
            continue
        if not 0 <= lookup.sequence < len(sequence_gradients):
            raise ConfigError(
                f"descriptors[{number}] names sequence {lookup.sequence} of {len(sequence_gradients)} "
                "gradients."
            )
        given, name = sequence_gradients[lookup.sequence], f"sequence_gradients[{lookup.sequence}]"
        shape = edges[lookup.feature + 1] - edges[lookup.feature], lookup.dim
        if given is None:
            continue
        check_tensor(name, given, FLOAT_DTYPES, 2)
        if tuple(given.shape) != shape:
            raise ConfigError(f"{name} is {given.shape[0]} x {given.shape[1]}; pass {shape[0]} x {shape[1]}.")


def _check_state(name: str, state: Tensor, wanted: int, kind: str) -> None:
    check_tensor(name, state, (torch.float32,), state.dim(), whole=True)
    if state.numel() != wanted:
        raise ConfigError(f"{name} has {state.numel()} numbers; {kind} needs {wanted}.")
