"""Which operators of torch a program has operations for, and how each becomes some."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from megalith.export.program import (
    Activation,
    Add,
    Affine,
    Columns,
    Concat,
    DotInteraction,
    LayerNorm,
    Linear,
    Multiply,
    SumColumns,
)
from megalith.export.tracing.recorder import Call, Handler, Recorder, Value
from megalith.export.tracing.records import Subtract, VectorSum


def _same(recorder: Recorder, call: Call) -> None:
    """Another shape of the same numbers."""
    recorder.name_tensor(call.result, recorder.value(call["self"]))


def _cast(recorder: Recorder, call: Call) -> None:
    if call.result.dtype != torch.float32:
        raise recorder.refusal(f"computes in {str(call.result.dtype).removeprefix('torch.')}")
    _same(recorder, call)


def _expand(recorder: Recorder, call: Call) -> None:
    if call.result.shape != call["self"].shape:
        raise recorder.refusal("repeats columns with expand")
    _same(recorder, call)


def _linear(recorder: Recorder, call: Call) -> None:
    _add_linear(recorder, call, call["input"], call["weight"], call["bias"], "none")


def _matrix_product(recorder: Recorder, call: Call) -> None:
    _add_linear(recorder, call, call["self"], call["mat2"].t(), None, "none")


def _biased_product(recorder: Recorder, call: Call) -> None:
    if (call["beta"], call["alpha"]) != (1, 1):
        raise recorder.refusal("runs aten.addmm with factors")
    _add_linear(recorder, call, call["mat1"], call["mat2"].t(), call["self"], "none")


def _fused_linear(recorder: Recorder, call: Call) -> None:
    """torch's oneDNN operator of a linear layer and its activation: see `megalith.models.layers.linear`."""
    if call["attr"] not in ("none", "relu"):
        raise recorder.refusal(f"runs a linear layer with {call['attr']}")
    _add_linear(recorder, call, call["X"], call["W"], call["B"], call["attr"])


def _add_linear(
    recorder: Recorder, call: Call, given: Tensor, weight: Tensor, bias: Tensor | None, function: str
) -> None:
    if recorder.is_value(weight) or recorder.is_value(bias):
        raise recorder.refusal("multiplies matrices of which both depend on the sample")
    value = recorder.value(given)
    if given.shape[-1] > max(1, value.columns):
        raise recorder.refusal("mixes samples")
    recorder.make(
        call.result,
        Linear,
        inputs=(value.name,),
        weight=recorder.weight(weight, "weight"),
        bias=None if bias is None else recorder.weight(bias.reshape(-1).expand(weight.shape[0]), "bias"),
        function=function,
        groups=max(1, value.columns // max(1, given.shape[-1])),
    )


def _function(name: str) -> Handler:
    def record(recorder: Recorder, call: Call) -> None:
        if call.get("approximate", "none") != "none":
            raise recorder.refusal("runs gelu by its tanh approximation")
        recorder.make(call.result, Activation, inputs=(recorder.value(call["self"]).name,), function=name)

    return record


def _tanh(recorder: Recorder, call: Call) -> None:
    """2 sigmoid(2 x) - 1."""
    value = recorder.value(call["self"])
    twice = recorder.add(Affine, value.columns, inputs=(value.name,), weight=2.0)
    share = recorder.add(Activation, value.columns, inputs=(twice,), function="sigmoid")
    recorder.make(call.result, Affine, inputs=(share,), weight=2.0, bias=-1.0)


def _concatenate(recorder: Recorder, call: Call) -> None:
    dim, tensors = call["dim"], call["tensors"]
    rank = call.result.dim()
    if dim % rank != 1 or call.result.shape[0] != recorder.samples:
        raise recorder.refusal("joins values otherwise than by columns")
    for tensor in tensors:
        if tensor.numel() and not recorder.is_value(tensor):
            raise recorder.refusal("joins a constant to values")
    names = [recorder.value(tensor).name for tensor in tensors if tensor.numel()]
    if len(names) == 1:
        recorder.name_tensor(call.result, Value(names[0], recorder.columns[names[0]]))
    else:
        recorder.make(call.result, Concat, inputs=tuple(names))


def _slice(recorder: Recorder, call: Call) -> None:
    given, result = call["self"], call.result
    if result.shape == given.shape:
        _same(recorder, call)
        return
    if call["step"] != 1:
        raise recorder.refusal("takes every second column or fewer")
    start = call["start"] or 0
    size = given.shape[call["dim"]]
    first = min(max(start + size if start < 0 else start, 0), size)
    _take(recorder, given, result, call["dim"], first, result.shape[call["dim"]])


def _select(recorder: Recorder, call: Call) -> None:
    given, index = call["self"], call["index"]
    first = index % given.shape[call["dim"]]
    _take(recorder, given, call.result, call["dim"], first, 1)


def _split(recorder: Recorder, call: Call) -> None:
    first = 0
    for part in call.result:
        size = part.shape[call["dim"]]
        if part.numel():
            _take(recorder, call["self"], part, call["dim"], first, size)
        first += size


def _unbind(recorder: Recorder, call: Call) -> None:
    for number, part in enumerate(call.result):
        _take(recorder, call["self"], part, call["dim"], number, 1)


def _take(recorder: Recorder, given: Tensor, result: Tensor, dim: int, first: int, count: int) -> None:
    """Columns of a value: positions of the dimension that follows that of samples."""
    value = recorder.value(given)
    if dim % given.dim() != 1 or given.shape[0] != recorder.samples:
        raise recorder.refusal("takes samples, or columns that do not lie side by side, out of a value")
    width = math.prod(given.shape[2:])
    if count == given.shape[1]:
        recorder.name_tensor(result, value)
    else:
        fields = {"first": first * width, "last": (first + count) * width}
        recorder.make(result, Columns, inputs=(value.name,), **fields)


def _sum(recorder: Recorder, call: Call) -> None:
    given, dims = call["self"], call["dim"]
    value = recorder.value(given)
    rest = set(range(1, given.dim()))
    summed = {dim % given.dim() for dim in dims} if dims else set(range(given.dim()))
    if summed == rest and given.shape[0] == recorder.samples:
        recorder.make(call.result, SumColumns, inputs=(value.name,))
    elif summed == {1} and given.dim() == 3 and given.shape[0] == recorder.samples:
        recorder.make(call.result, VectorSum, inputs=(value.name,), dim=given.shape[2])
    else:
        raise recorder.refusal("sums over samples, or over columns that do not lie side by side")


def _mean(recorder: Recorder, call: Call) -> None:
    given = call["self"]
    value = recorder.value(given)
    if {dim % given.dim() for dim in call["dim"] or (0,)} != set(range(1, given.dim())):
        raise recorder.refusal("takes a mean over samples, or over some columns")
    total = recorder.add(SumColumns, 1, inputs=(value.name,))
    recorder.make(call.result, Affine, inputs=(total,), weight=1 / value.columns)


def _square(recorder: Recorder, call: Call) -> None:
    if call["exponent"] != 2:
        raise recorder.refusal(f"raises to the power {call['exponent']}")
    name = recorder.value(call["self"]).name
    recorder.make(call.result, Multiply, inputs=(name, name))


def _add(recorder: Recorder, call: Call) -> None:
    first, second = call["self"], call["other"]
    if call.get("alpha", 1) != 1:
        raise recorder.refusal("adds with a factor")
    if recorder.is_value(first) and recorder.is_value(second):
        recorder.make(call.result, Add, inputs=_alike(recorder, call, first, second))
    else:
        value, constant = (first, second) if recorder.is_value(first) else (second, first)
        _affine(recorder, call.result, value, bias=constant)


def _subtract(recorder: Recorder, call: Call) -> None:
    first, second = call["self"], call["other"]
    if call.get("alpha", 1) != 1:
        raise recorder.refusal("subtracts with a factor")
    if recorder.is_value(first) and recorder.is_value(second):
        recorder.make(call.result, Subtract, inputs=_alike(recorder, call, first, second))
    elif recorder.is_value(first):
        _affine(recorder, call.result, first, bias=-_tensor(second))
    else:
        _affine(recorder, call.result, second, weight=-1.0, bias=first)


def _subtract_from(recorder: Recorder, call: Call) -> None:
    _affine(recorder, call.result, call["self"], weight=-1.0, bias=call["other"])


def _multiply(recorder: Recorder, call: Call) -> None:
    first, second = call["self"], call["other"]
    if recorder.is_value(first) and recorder.is_value(second):
        recorder.make(call.result, Multiply, inputs=_alike(recorder, call, first, second))
    else:
        value, constant = (first, second) if recorder.is_value(first) else (second, first)
        _affine(recorder, call.result, value, weight=constant)


def _divide(recorder: Recorder, call: Call) -> None:
    if recorder.is_value(call["other"]) or call.get("rounding_mode") is not None:
        raise recorder.refusal("divides by a value of the sample")
    _affine(recorder, call.result, call["self"], weight=1 / _tensor(call["other"]))


def _negate(recorder: Recorder, call: Call) -> None:
    _affine(recorder, call.result, call["self"], weight=-1.0)


def _alike(recorder: Recorder, call: Call, first: Tensor, second: Tensor) -> tuple[str, str]:
    """Two values of as many columns, or one of them of one."""
    for tensor in (first, second):
        same = tensor.shape == call.result.shape
        is_column = recorder.value(tensor).columns == 1 and tensor.dim() == call.result.dim()
        if not same and not (is_column and tensor.shape[0] == recorder.samples):
            raise recorder.refusal("combines values of different shapes")
    return recorder.value(first).name, recorder.value(second).name


def _affine(recorder: Recorder, result: Tensor, given: Tensor, **constants: Any) -> None:
    fields = {key: _by_column(recorder, given, constant, key) for key, constant in constants.items()}
    if result.shape != given.shape:
        raise recorder.refusal("combines a value with a constant of more dimensions")
    recorder.make(result, Affine, inputs=(recorder.value(given).name,), **fields)


def _by_column(recorder: Recorder, given: Tensor, constant: Any, key: str) -> str | float:
    """A constant as one number, or as a weight of a number for each column."""
    tensor = _tensor(constant)
    if tensor.numel() == 1:
        return float(tensor)
    if (tensor.dim() == given.dim() and tensor.shape[0] != 1) or given.dim() < 2:
        raise recorder.refusal("combines a value with a constant for each sample")
    row = tensor.reshape(tensor.shape[1:]) if tensor.dim() == given.dim() else tensor
    numbers = row.expand(given.shape[1:]).reshape(-1)
    repeated = numbers.repeat(recorder.value(given).columns // len(numbers))
    return recorder.weight(tensor if torch.equal(repeated, tensor.reshape(-1)) else repeated, key)


def _tensor(constant: Any) -> Tensor:
    return constant.detach() if isinstance(constant, Tensor) else torch.tensor(float(constant))


def _layer_norm(recorder: Recorder, call: Call) -> None:
    given = call["input"]
    value, size = recorder.value(given), math.prod(call["normalized_shape"])
    if size != value.columns:
        raise recorder.refusal("normalises some columns of a value apart from others")
    recorder.make(
        call.result[0],
        LayerNorm,
        inputs=(value.name,),
        eps=call["eps"],
        **{
            key: recorder.weight(call[key].reshape(-1), key)
            for key in ("weight", "bias")
            if call[key] is not None
        },
    )


def _batch_norm(recorder: Recorder, call: Call) -> None:
    given, mean, variance = call["input"], call["running_mean"], call["running_var"]
    if call.get("training", False) or mean is None or variance is None:
        raise recorder.refusal("normalises by the batch's own statistics, which a score must not depend on")
    if given.shape[0] != recorder.samples:
        raise recorder.refusal("mixes samples")
    scale = torch.rsqrt(variance.double() + call["eps"])
    if call["weight"] is not None:
        scale = scale * call["weight"].double()
    bias = -mean.double() * scale
    if call["bias"] is not None:
        bias = bias + call["bias"].double()
    shape = (-1, *[1] * (given.dim() - 2))
    constants = {"weight": scale.float().view(shape), "bias": bias.float().view(shape)}
    _affine(recorder, call.result[0], given, **constants)


def _dot_interaction(recorder: Recorder, call: Call) -> None:
    parts = [call["rest"]] if call["first"] is None else [call["first"], call["rest"]]
    names = tuple(recorder.value(part).name for part in parts)
    recorder.make(call.result, DotInteraction, inputs=names, dim=call["dim"])


_SAME = "view reshape _unsafe_view squeeze unsqueeze flatten unflatten alias detach clone contiguous"
OPERATORS: dict[str, Handler] = {
    **{f"aten::{name}": _same for name in _SAME.split()},
    "aten::_reshape_alias": _same,
    "aten::_to_copy": _cast,
    "aten::expand": _expand,
    "aten::linear": _linear,
    "aten::mm": _matrix_product,
    "aten::addmm": _biased_product,
    "mkldnn::_linear_pointwise": _fused_linear,
    **{f"aten::{name}": _function(name) for name in ("relu", "gelu", "silu", "sigmoid")},
    **{f"aten::{name}_": _function(name) for name in ("relu", "silu", "sigmoid")},
    "aten::tanh": _tanh,
    "aten::cat": _concatenate,
    "aten::stack": _concatenate,
    "aten::slice": _slice,
    "aten::select": _select,
    **{f"aten::{name}": _split for name in ("split", "split_with_sizes", "unsafe_split")},
    "aten::unbind": _unbind,
    "aten::sum": _sum,
    "aten::mean": _mean,
    "aten::pow": _square,
    **{f"aten::{name}": _add for name in ("add", "add_")},
    **{f"aten::{name}": _subtract for name in ("sub", "sub_")},
    "aten::rsub": _subtract_from,
    **{f"aten::{name}": _multiply for name in ("mul", "mul_")},
    **{f"aten::{name}": _divide for name in ("div", "div_")},
    "aten::neg": _negate,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_batch_norm": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "megalith::dot_interaction": _dot_interaction,
}
"""By the name of an operator, what writes it down."""
