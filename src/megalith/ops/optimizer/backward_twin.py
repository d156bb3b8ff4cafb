"""The plain-torch truth of the backward pass: same arguments, same results, one table at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.descriptors import POOLINGS, LookupBatch, OutputGradients, descriptors_of
from megalith.ops.embedding.pooling import value_gradients
from megalith.ops.embedding.twin import bags_of
from megalith.ops.optimizer.row_gradients import RowGradients, reduce_duplicates
from megalith.ops.optimizer.steps import OptimizerStep, PhysicalRows, update_rows_
from megalith.ops.optimizer.stochastic_rounding import RowRounding


def embedding_backward_twin_(
    weights: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
    rounding: Tensor,
) -> None:
    """One optimizer step on every touched row."""
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    touched = touched_rows(weights, descriptors, batch, OutputGradients(gradient, sequence_gradients))
    for table, gradients in touched.items():
        step = OptimizerStep(*steps[table].tolist())
        tensors = PhysicalRows(weights[table], first[table], second[table])
        update_rows_(tensors, gradients, step, RowRounding(*rounding[table].tolist()))


def touched_rows(
    weights: Sequence[Tensor], descriptors: Tensor, batch: LookupBatch, gradients: OutputGradients
) -> dict[int, RowGradients]:
    """The touched rows of each table that has any, with their gradients."""
    lookups, touched = descriptors_of(descriptors), {}
    for table, weight in enumerate(weights):
        ids, parts = [], []
        for lookup in lookups:
            if lookup.table != table:
                continue
            bags = bags_of(lookup, batch)
            if POOLINGS[lookup.pooling] == "none":
                given = gradients.sequences[lookup.sequence]
                part = None if given is None else given.float()[bags.kept]
            elif gradients.pooled is None:
                part = None
            else:
                columns = gradients.pooled[:, lookup.column : lookup.column + lookup.dim].float()
                arguments = weight, bags.values, bags.offsets, POOLINGS[lookup.pooling], columns
                part = value_gradients(*arguments, bags.sample_weights)
            if part is not None:
                ids.append(bags.values)
                parts.append(part)
        if ids and sum(map(len, ids)):
            touched[table] = reduce_duplicates(torch.cat(ids), torch.cat(parts))
    return touched
