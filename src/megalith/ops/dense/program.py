"""Whole dense parts in one native call.

`DenseProgram` packs the weights of a description once, and then runs it on batches of any size from any
number of threads. Samples go through all operations in blocks that stay in a core's caches; a batch of a few
samples shares large layers between threads instead. What a sample gives depends neither on its batch nor on
threads. `run_program_twin` is the truth in plain torch.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops import native
from megalith.ops.dense.functions_twin import FUNCTIONS
from megalith.ops.dense.layout import lay_out
from megalith.ops.dense.operations import (
    DENSE_PRECISIONS,
    DenseDescription,
    DenseOperation,
    numbers_of,
    prepared_weight,
)
from megalith.ops.dense.quantise import QuantisedWeight
from megalith.ops.tensors import addresses, check_tensor

STEP_KINDS = (
    *("linear", "activation", "concat", "add", "multiply", "multiply_add", "affine", "layer_norm"),
    *("sum_columns", "dot_interaction", "pair_sum"),
)
"""In the order of their numbers in csrc/dense/program.h; columns are views and take no step."""


class _Tensors:
    """Weights as the native core reads them: by number, -1 for none."""

    def __init__(self) -> None:
        self.held: list[Tensor] = []

    def number(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return -1
        if tensor.device.type != "cpu":
            raise ConfigError(f"A weight is on {tensor.device}; dense programs run on the CPU.")
        self.held.append(tensor.detach().contiguous())
        return len(self.held) - 1


class DenseProgram:
    """A description with packed weights; `threads` of torch's pool run it, all of them where it is None.

    It keeps no tensor of the description: those may go once it is made.
    """

    def __init__(self, description: DenseDescription, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ConfigError(f"threads is {threads}; pass 1 or more.")
        self.threads = threads
        layout, tensors = lay_out(description), _Tensors()
        names = {name: number for number, name in enumerate(layout.values)}
        steps: list[int] = []
        operands: list[int] = []
        for operation in description.operations:
            if operation.kind == "columns":
                continue
            steps += [
                *(STEP_KINDS.index(operation.kind), FUNCTIONS.index(operation.function), operation.groups),
                *(DENSE_PRECISIONS.index(operation.precision), len(operands), len(operation.inputs)),
                *(names[operation.output], operation.dim),
                *_weights_of(operation, tensors, description.columns[operation.output]),
            ]
            operands += [names[name] for name in operation.inputs]
        places = [number for place in layout.values.values() for number in place]
        buffers = [number for place in layout.buffers for number in place]
        results = [number for one in description.outputs for number in (names[one.value], one.probability)]
        pointer, pointers = ctypes.c_void_p(), addresses(tensors.held)
        native.library().mg_dense_create(
            *(_records(steps), len(steps) // 12, _records(operands), len(operands)),
            *(_records(places), len(names), _records(buffers), len(layout.buffers)),
            *(pointers, _records([one.numel() for one in tensors.held]), len(tensors.held)),
            *(_records(results), len(description.outputs), ctypes.byref(pointer)),
        )
        native.share_torch_threads()
        self.handle, self.workers = pointer.value, threads or 1 << 20
        self.output_columns, self._call = description.output_columns, native.library().mg_dense_run
        self.inputs = tuple(description.inputs.items())
        """Names and columns."""
        self._pointers = ctypes.c_void_p * len(description.inputs)
        self._strides = ctypes.c_int64 * len(description.inputs)
        self._close = weakref.finalize(self, native.library().mg_dense_destroy, pointer.value)

    def run(self, *inputs: Tensor, out: Tensor | None = None) -> Tensor:
        """float32 [batch, output columns] of float32 inputs [batch, columns], in the description's order.

        Written to `out` where one is given.
        """
        if len(inputs) != len(self.inputs):
            names = ", ".join(name for name, _ in self.inputs)
            raise ConfigError(f"A dense program reads {names}; pass {len(self.inputs)} tensors.")
        held = [_checked(*named, one) for named, one in zip(self.inputs, inputs, strict=True)]
        batch = held[0].shape[0]
        for one in held:
            if one.shape[0] != batch:
                raise ConfigError(f"Inputs have {[len(one) for one in held]} samples; pass as many of each.")
        if out is None:
            out = torch.empty(batch, self.output_columns)
        elif (
            len(out) != batch
            or not out.is_contiguous()
            or _checked("out", self.output_columns, out) is not out
        ):
            raise ConfigError(f"out is not [{batch}, {self.output_columns}] in one piece; pass one that is.")
        self._call(
            self.handle,
            self._pointers(*[one.data_ptr() for one in held]),
            self._strides(*[one.stride(0) for one in held]),
            *(batch, self.workers, out.data_ptr()),
        )
        return out

    def bytes(self) -> dict[str, int]:
        """Of packed weights, and of room for samples on all threads that have run it."""
        counts = (ctypes.c_int64 * 2)()
        native.library().mg_dense_bytes(self.handle, counts)
        return {"weights": counts[0], "workspaces": counts[1]}


def _checked(name: str, columns: int, tensor: Tensor) -> Tensor:
    """An input whose columns are side by side. The usual one passes by few questions: they take time."""
    if tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype is torch.float32:
        shape = tensor.shape
        if len(shape) == 2 and shape[1] == columns and tensor.is_contiguous():
            end = 4 * (tensor.storage_offset() + tensor.numel())
            if end <= tensor.untyped_storage().nbytes():
                return tensor
    check_tensor(name, tensor, (torch.float32,), 2)
    if tensor.shape[1] != columns:
        raise ConfigError(f"'{name}' has {tensor.shape[1]} columns; pass {columns}.")
    return tensor if tensor.stride(1) == 1 and tensor.stride(0) >= columns else tensor.contiguous()


def _weights_of(operation: DenseOperation, tensors: _Tensors, columns: int) -> tuple[int, int, int, int]:
    """Numbers of weight, scales, bias and eps."""
    if operation.kind == "linear":
        weight, bias = prepared_weight(operation), operation.bias
        assert bias is None or isinstance(bias, Tensor)
        floats = tensors.number(None if bias is None else bias.float())
        if isinstance(weight, QuantisedWeight):
            return tensors.number(weight.codes), tensors.number(weight.scales), floats, -1
        return tensors.number(weight), -1, floats, -1
    if operation.kind == "affine":
        factor, addend = numbers_of(operation.weight), numbers_of(operation.bias)
        one, none = torch.ones(1), torch.zeros(1)
        return (
            *(tensors.number(one if factor is None else factor), -1),
            *(tensors.number(none if addend is None else addend), -1),
        )
    if operation.kind == "layer_norm":
        given = (numbers_of(operation.weight), numbers_of(operation.bias))
        wide = [tensors.number(None if one is None else one.expand(columns)) for one in given]
        return wide[0], -1, wide[1], tensors.number(torch.tensor([operation.eps]))
    return -1, -1, -1, -1


def _records(numbers: list[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
