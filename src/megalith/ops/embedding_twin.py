"""The plain-torch truth of the embedding operators: same arguments, same results, one slot at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.lookup import (
    RowGradients,
    pooled_lookup,
    reduce_duplicates,
    value_gradients,
    without_padding,
)
from megalith.ops.updates import Step, update_rows_

POOLINGS = ("sum", "mean", "max", "none")
KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "lamb", "lars")
_TABLE_SEED = 0xD1342543DE82EF95


class Slot(NamedTuple):
    """A lookup of one feature in one table, as csrc/embedding.h describes it."""

    table: int
    rows: int
    dim: int
    pooling: int
    dtype: int
    feature: int
    column: int
    sequence: int
    padding: int


class _Bags(NamedTuple):
    """A slot's values with offsets from 0, padding left out; `kept` says which of its values these are."""

    values: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    kept: Tensor
    begin: int


def embedding_forward_twin(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    output_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    batch = (len(offsets) - 1) // num_features
    out = torch.empty(batch, output_dim, device=values.device)
    for slot in slots_of(slots):
        bags = _bags(slot, values, offsets, sample_weights, batch)
        pooled = pooled_lookup(
            weights[slot.table], bags.values, bags.offsets, POOLINGS[slot.pooling], bags.sample_weights
        )
        out[:, slot.column : slot.column + slot.dim] = pooled
    return out.to(dtype)


def embedding_sequence_twin(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    slot: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    one = slots_of(slots)[slot]
    bags = _bags(one, values, offsets, None, (len(offsets) - 1) // num_features)
    out = torch.zeros(len(bags.kept), dim, device=values.device)
    out[bags.kept] = weights[one.table][bags.values].float()
    return out.to(dtype)


def embedding_backward_twin_(
    weights: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    steps: Tensor,
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
    seed: int,
) -> None:
    lookup = slots, values, offsets, sample_weights, num_features
    for table, touched in touched_rows(weights, *lookup, gradient, sequence_gradients).items():
        step = Step(*steps[table].tolist())
        state = weights[table], first[table], second[table]
        update_rows_(KINDS[int(step.kind)], *state, touched, step, table_seed(seed, table))


def touched_rows(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
) -> dict[int, RowGradients]:
    """The touched rows of each table that has any, with their gradients."""
    batch = (len(offsets) - 1) // num_features
    listed, found = slots_of(slots), {}
    for table, weight in enumerate(weights):
        ids, parts = [], []
        for slot in (one for one in listed if one.table == table):
            bags = _bags(slot, values, offsets, sample_weights, batch)
            if POOLINGS[slot.pooling] == "none":
                given = sequence_gradients[slot.sequence]
                part = None if given is None else given.float()[bags.kept]
            elif gradient is None:
                part = None
            else:
                columns = gradient[:, slot.column : slot.column + slot.dim].float()
                arguments = weight, bags.values, bags.offsets, POOLINGS[slot.pooling], columns
                part = value_gradients(*arguments, bags.sample_weights)
            if part is not None:
                ids.append(bags.values)
                parts.append(part)
        if ids and sum(map(len, ids)):
            found[table] = reduce_duplicates(torch.cat(ids), torch.cat(parts))
    return found


def table_seed(seed: int, table: int) -> int:
    """The seed of what is rounded at random in a table."""
    return (seed + table * _TABLE_SEED) & (2**64 - 1)


def sample_weight_gradient_twin(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor,
) -> Tensor:
    """The gradient of each sample weight: its row times its bag's gradient. Max and sequences have none."""
    batch = (len(offsets) - 1) // num_features
    total = torch.zeros(len(values), device=values.device)
    for slot in slots_of(slots):
        if POOLINGS[slot.pooling] not in ("sum", "mean"):
            continue
        bags = _bags(slot, values, offsets, None, batch)
        columns = gradient[:, slot.column : slot.column + slot.dim].float()
        spread = value_gradients(
            weights[slot.table], bags.values, bags.offsets, POOLINGS[slot.pooling], columns
        )
        places = bags.begin + bags.kept.nonzero().flatten()
        total[places] += (weights[slot.table][bags.values].float() * spread).sum(dim=1)
    return total


def slots_of(slots: Tensor) -> list[Slot]:
    """The rows of the tensor that the operators take."""
    return [Slot(*row) for row in slots.tolist()]


def _bags(slot: Slot, values: Tensor, offsets: Tensor, sample_weights: Tensor | None, batch: int) -> _Bags:
    bounds = offsets[slot.feature * batch : (slot.feature + 1) * batch + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    own_weights = None if sample_weights is None else sample_weights[begin:end]
    return _Bags(*without_padding(values[begin:end], bounds - begin, own_weights, slot.padding), begin)
