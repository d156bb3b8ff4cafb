"""A served model as ONNX: its dense part, or all of it with tables as inputs that stay where they are.

Onnxruntime has no pooled lookup: gathered rows are summed over the ids of a sample, and rows of int8 are
decoded after they were gathered, by DequantizeLinear or by a product that scales and sums at once.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from megalith.bench.serve.shapes import ServedShape
from megalith.bench.serve.weights import DenseLayers, Layer

TableWay = Literal["float32", "dequantised", "product"]
_OPSET, _IR = 17, 10


class _Graph:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self._number = 0

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        self._number += 1
        name = output or f"{kind.lower()}_{self._number}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Any) -> str:
        self._number += 1
        name = f"constant_{self._number}"
        held = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(held), name))
        return name

    def input(self, name: str, kind: int, shape: list[Any]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def model(self, output: str) -> Any:
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 1])]
        graph = helper.make_graph(self.nodes, "served", self.inputs, outputs, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
        onnx.checker.check_model(made)
        return made


def dense_graph(shape: ServedShape, layers: DenseLayers) -> Any:
    """The dense part: `dense` and `embedded` to `score`."""
    graph = _Graph()
    dense = graph.input("dense", TensorProto.FLOAT, ["batch", shape.tables.numbers])
    width = len(shape.tables.rows) * shape.dim
    embedded = graph.input("embedded", TensorProto.FLOAT, ["batch", width])
    return graph.model(_dense(graph, layers, dense, embedded))


def whole_graph(shape: ServedShape, layers: DenseLayers, way: TableWay) -> Any:
    """All of it: `dense`, `ids_N` [batch, ids] and tables to `score`."""
    graph = _Graph()
    dense = graph.input("dense", TensorProto.FLOAT, ["batch", shape.tables.numbers])
    axis = graph.constant(np.array([1]))
    pooled = []
    for place, (rows, lookups) in enumerate(zip(shape.tables.rows, shape.tables.lookups, strict=True)):
        ids = graph.input(f"ids_{place}", TensorProto.INT32, ["batch", lookups])
        kind = TensorProto.FLOAT if way == "float32" else TensorProto.UINT8
        table = graph.input(f"table_{place}", kind, [rows, shape.dim])
        if way == "float32":
            pooled.append(graph.node("ReduceSum", graph.node("Gather", table, ids), axis, keepdims=0))
        else:
            pooled.append(_pooled_codes(graph, shape, place, table, ids, way))
    return graph.model(_dense(graph, layers, dense, graph.node("Concat", *pooled, axis=1)))


def _pooled_codes(graph: _Graph, shape: ServedShape, place: int, table: str, ids: str, way: TableWay) -> str:
    """Rows of int8, decoded and summed; scale and bias of a row lie beside the codes."""
    rows, lookups = shape.tables.rows[place], shape.tables.lookups[place]
    scales = graph.input(f"scales_{place}", TensorProto.FLOAT, [rows])
    biases = graph.input(f"biases_{place}", TensorProto.FLOAT, [rows])
    axis = graph.constant(np.array([1]))
    bias = graph.node("ReduceSum", graph.node("Gather", biases, ids), axis, keepdims=1)
    codes, scale = graph.node("Gather", table, ids), graph.node("Gather", scales, ids)
    if way == "product":
        row = graph.node("Reshape", scale, graph.constant(np.array([-1, 1, lookups])))
        floats = graph.node("Cast", codes, to=TensorProto.FLOAT)
        total = graph.node("Squeeze", graph.node("MatMul", row, floats), axis)
        return graph.node("Add", total, bias)
    flat = graph.node("Reshape", codes, graph.constant(np.array([-1, shape.dim])))
    flat_scale = graph.node("Reshape", scale, graph.constant(np.array([-1])))
    decoded = graph.node("DequantizeLinear", flat, flat_scale, axis=0)
    bags = graph.node("Reshape", decoded, graph.constant(np.array([-1, lookups, shape.dim])))
    return graph.node("Add", graph.node("ReduceSum", bags, axis, keepdims=0), bias)


def _dense(graph: _Graph, layers: DenseLayers, dense: str, embedded: str) -> str:
    for layer in layers.bottom:
        dense = _layer(graph, layer, dense)
    start = joined = graph.node("Concat", dense, embedded, axis=1)
    for cross in layers.crosses:
        mixed = joined
        for layer in cross:
            mixed = _layer(graph, layer, mixed)
        joined = graph.node("Add", graph.node("Mul", start, mixed), joined)
    for layer in layers.top:
        joined = _layer(graph, layer, joined)
    return graph.node("Sigmoid", joined, output="score")


def _layer(graph: _Graph, layer: Layer, x: str) -> str:
    # MatMul and Add, which quantisation knows; onnxruntime makes one product of both.
    out = graph.node("MatMul", x, graph.constant(layer.weight.t()))
    if layer.bias is not None:
        out = graph.node("Add", out, graph.constant(layer.bias))
    return graph.node("Relu", out) if layer.relu else out
