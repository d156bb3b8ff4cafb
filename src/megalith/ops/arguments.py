"""What the registered operators refuse before the native core reads memory by it, each in one sentence.

Anybody may call an operator of torch's dispatcher with anything. Callers inside the package that have checked
already go past this (`embedding.Tables`). Tensors that are only read may lie in memory as they like: those
that the core wants in one piece are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.core.schema import MAX_DENSE_ROWS
from megalith.ops.embedding_twin import KINDS, POOLINGS, Slot, slots_of
from megalith.ops.indices import NONE, OFFSETS, lookup_fault
from megalith.ops.updates import Step

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of weights and outputs, in the order of csrc/embedding.h."""
FLOATS = (*DTYPES, torch.float64)
"""Of gradients and other vectors, which the operators turn into float32."""
_NONE = POOLINGS.index("none")
_FULL_STATE = {"adagrad", "adam", "rowwise_adam", "lamb", "lars"}, {"adam", "lamb"}
_ROW_STATE = {"rowwise_adagrad"}, {"rowwise_adam"}
_INT64_MAX = 2**63 - 1


def check_tensor(
    name: str, tensor: Tensor, dtypes: Sequence[torch.dtype], dim: int, *, whole: bool = False
) -> None:
    """Refuses another device, layout, type or number of dimensions; if `whole`, also gaps."""
    if tensor.device.type != "cpu":
        raise ConfigError(f"{name} is on {tensor.device}; put all tensors of an operator on one device.")
    if tensor.layout != torch.strided:
        raise ConfigError(f"{name} is {tensor.layout}; pass a dense tensor.")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ConfigError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}; pass {wanted}.")
    if tensor.dim() != dim:
        raise ConfigError(f"{name} has {tensor.dim()} dimensions; pass {dim}.")
    if whole and not tensor.is_contiguous():
        raise ConfigError(f"{name} is not contiguous; it is read where it is, so pass it in one piece.")
    if _end(tensor) - tensor.untyped_storage().data_ptr() > tensor.untyped_storage().nbytes():
        raise ConfigError(
            f"{name} reaches beyond its storage, which was resized; pass a tensor that has memory."
        )


def check_devices(tensors: Iterable[Tensor | None]) -> None:
    """Refuses tensors on more than one device; the only check that needs no memory behind them."""
    devices = sorted({str(one.device) for one in tensors if one is not None})
    if len(devices) > 1:
        raise ConfigError(
            f"Tensors of one operator are on {' and '.join(devices)}; put all of them on one device."
        )


def check_lookup(
    weights: Sequence[Tensor],
    slots: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
) -> list[Slot]:
    """What all lookups have in common, ids and all; the slots as they were described."""
    for number, weight in enumerate(weights):
        check_tensor(f"weights[{number}]", weight, DTYPES, 2, whole=True)
        if weight.shape[1] < 1:
            raise ConfigError(f"weights[{number}] has no columns; pass a table of one or more.")
    check_tensor("slots", slots, (torch.int64,), 2)
    check_tensor("values", values, (torch.int32, torch.int64), 1)
    check_tensor("offsets", offsets, (torch.int64,), 1)
    if sample_weights is not None:
        check_tensor("sample_weights", sample_weights, (torch.float32,), 1)
        if len(sample_weights) != len(values):
            raise ConfigError(
                f"sample_weights has {len(sample_weights)} entries; pass one for each of the values, "
                f"{len(values)}."
            )
    check_bags(offsets, num_features)
    if slots.shape[1] != len(Slot._fields):
        raise ConfigError(f"slots has {slots.shape[1]} columns; pass {len(Slot._fields)} (SLOT_FIELDS).")
    described = slots_of(slots)
    for number, slot in enumerate(described):
        _check_slot(number, slot, weights, num_features)
    rows = [_INT64_MAX] * num_features
    for slot in described:
        rows[slot.feature] = min(rows[slot.feature], slot.rows)
    fault = lookup_fault(values, offsets, torch.tensor(rows))
    if fault == OFFSETS:
        raise DataError(
            f"offsets must rise from 0 to the number of values ({len(values)}), and these do not."
        )
    if fault != NONE:
        raise DataError(
            f"values[{fault}] is {int(values[fault])}, outside the table that its feature is looked up in; "
            "pass ids in [0, rows)."
        )
    return described


def check_bags(offsets: Tensor, num_features: int) -> None:
    """Refuses a number of offsets that is not features * batch + 1."""
    if num_features < 1:
        raise ConfigError(f"num_features is {num_features}; pass 1 or more.")
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ConfigError(
            f"offsets has {offsets.shape[0]} entries; pass batch * {num_features} features and one more."
        )


def _check_slot(number: int, slot: Slot, weights: Sequence[Tensor], num_features: int) -> None:
    def refuse(what: str) -> ConfigError:
        return ConfigError(f"slots[{number}] {what}.")

    if not 0 <= slot.table < len(weights):
        raise refuse(f"names table {slot.table} of {len(weights)}, the first being 0")
    weight = weights[slot.table]
    if (slot.rows, slot.dim) != tuple(weight.shape):
        raise refuse(f"says {slot.rows} x {slot.dim} of a table of {weight.shape[0]} x {weight.shape[1]}")
    if slot.rows > MAX_DENSE_ROWS:
        raise refuse(f"names a table of {slot.rows:,} rows; the most is {MAX_DENSE_ROWS:,}")
    if not 0 <= slot.dtype < len(DTYPES) or DTYPES[slot.dtype] != weight.dtype:
        raise refuse(f"says dtype {slot.dtype} of a table of {weight.dtype}")
    if not 0 <= slot.pooling < len(POOLINGS):
        raise refuse(f"says pooling {slot.pooling}, which is none of {len(POOLINGS)}")
    if not 0 <= slot.feature < num_features:
        raise refuse(f"names feature {slot.feature} of {num_features}, the first being 0")
    if slot.padding < -1:
        raise refuse(f"says padding {slot.padding}; pass an id, or -1 for none")


def check_output(described: Sequence[Slot], output_dim: int, dtype: torch.dtype) -> None:
    """Refuses slots that do not fill the pooled output, each column once."""
    check_output_dtype(dtype)
    column = 0
    for slot in sorted(described, key=lambda one: one.column):
        if slot.pooling == _NONE:
            raise ConfigError(
                "embedding_forward was given a slot that does not pool; use embedding_sequence."
            )
        if slot.column != column:
            raise ConfigError(
                f"slots leave or share columns between {min(column, slot.column)} and "
                f"{max(column, slot.column)} of the output; pass each column once."
            )
        column += slot.dim
    if column != output_dim:
        raise ConfigError(f"slots fill {column} columns and output_dim is {output_dim}; pass the same.")


def check_output_dtype(dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise ConfigError(f"The output cannot be {dtype}; pass float32, float16 or bfloat16.")


def check_sequence(described: Sequence[Slot], slot: int, dim: int, dtype: torch.dtype) -> None:
    """Refuses a slot that is not there, that pools, or that has another number of columns."""
    check_output_dtype(dtype)
    if not 0 <= slot < len(described):
        raise ConfigError(f"slot is {slot} and there are {len(described)}, the first being 0.")
    if described[slot].pooling != _NONE:
        raise ConfigError(f"slots[{slot}] pools; use embedding_forward.")
    if described[slot].dim != dim:
        raise ConfigError(f"dim is {dim} and slots[{slot}] has {described[slot].dim} columns; pass the same.")


def check_gradient(described: Sequence[Slot], gradient: Tensor, batch: int) -> None:
    """Refuses a pooled gradient that lacks samples or columns."""
    check_tensor("gradient", gradient, FLOATS, 2)
    if len(gradient) != batch:
        raise ConfigError(f"gradient has {len(gradient)} rows; pass one for each of {batch} samples.")
    for number, slot in enumerate(described):
        if slot.pooling != _NONE and not 0 <= slot.column <= gradient.shape[1] - slot.dim:
            raise ConfigError(
                f"slots[{number}] has columns {slot.column} to {slot.column + slot.dim} of a gradient of "
                f"{gradient.shape[1]}."
            )


def check_update(
    tables: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
    steps: Tensor,
    described: Sequence[Slot],
    offsets: Tensor,
    num_features: int,
    gradient: Tensor | None,
    sequence_gradients: Sequence[Tensor | None],
) -> None:
    """What a backward pass needs besides the lookup: states, settings, gradients."""
    weights, first, second = tables
    if not len(weights) == len(first) == len(second):
        raise ConfigError(
            f"There are {len(weights)} weights, {len(first)} first and {len(second)} second states; pass one "
            "of each for every table."
        )
    check_tensor("steps", steps, (torch.float32,), 2)
    if tuple(steps.shape) != (len(weights), len(Step._fields)):
        raise ConfigError(
            f"steps is {steps.shape[0]} x {steps.shape[1]}; pass {len(weights)} x {len(Step._fields)}."
        )
    kinds = steps[:, 0].tolist()
    for table, kind in enumerate(kinds):
        if kind not in range(len(KINDS)):
            raise ConfigError(f"steps[{table}] names optimizer {kind}, which is none of {len(KINDS)}.")
    for slot in described:
        kind, rows = KINDS[int(kinds[slot.table])], slot.rows
        for name, states, full, row in zip(
            ("first", "second"), (first, second), _FULL_STATE, _ROW_STATE, strict=True
        ):
            wanted = rows * slot.dim if kind in full else rows if kind in row else None
            if wanted is not None:
                _check_state(f"{name}[{slot.table}]", states[slot.table], wanted, kind)
    batch = (len(offsets) - 1) // num_features
    if gradient is not None:
        check_gradient(described, gradient, batch)
    edges = offsets[::batch].tolist() if batch else [0] * (num_features + 1)
    for number, slot in enumerate(described):
        if slot.pooling != _NONE:
            continue
        if not 0 <= slot.sequence < len(sequence_gradients):
            raise ConfigError(
                f"slots[{number}] names sequence {slot.sequence} of {len(sequence_gradients)} gradients."
            )
        one, name = sequence_gradients[slot.sequence], f"sequence_gradients[{slot.sequence}]"
        shape = edges[slot.feature + 1] - edges[slot.feature], slot.dim
        if one is None:
            continue
        check_tensor(name, one, FLOATS, 2)
        if tuple(one.shape) != shape:
            raise ConfigError(f"{name} is {one.shape[0]} x {one.shape[1]}; pass {shape[0]} x {shape[1]}.")


def _check_state(name: str, state: Tensor, wanted: int, kind: str) -> None:
    check_tensor(name, state, (torch.float32,), state.dim(), whole=True)
    if state.numel() != wanted:
        raise ConfigError(f"{name} has {state.numel()} numbers; {kind} needs {wanted}.")


def check_apart(written: Iterable[Tensor], read: Iterable[Tensor]) -> None:
    """Refuses tables that share memory with each other or with what an update reads."""
    spans = [(one.data_ptr(), _end(one), True) for one in written if one.numel()]
    spans += [(one.data_ptr(), _end(one), False) for one in read if one.numel()]
    written_end = any_end = 0
    for begin, end, is_written in sorted(spans):
        if begin < (any_end if is_written else written_end):
            raise ConfigError(
                "Tables share memory with each other or with the batch; pass tensors of their own."
            )
        any_end = max(any_end, end)
        if is_written:
            written_end = max(written_end, end)


def _end(tensor: Tensor) -> int:
    """The address behind the last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.untyped_storage().data_ptr()
    return begin + (int(tensor.storage_offset()) + int(last) + 1) * tensor.element_size()
