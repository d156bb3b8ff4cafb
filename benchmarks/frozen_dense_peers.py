"""What others offer for dense parts, each made of a description; used by `frozen_dense.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megalith.ops.dense.operations import DenseDescription

Runner = Callable[..., Any]
Calibration = list[tuple[Tensor, ...]]


class TorchPart(torch.nn.Module):
    """The operations as modules and functions of torch."""

    def __init__(self, description: DenseDescription) -> None:
        super().__init__()
        self.description = description
        self.layers = torch.nn.ModuleDict()
        for one in description.operations:
            if one.kind == "linear":
                outputs, inputs = one.weight.shape  # type: ignore[union-attr]
                layer = torch.nn.Linear(inputs, outputs)
                layer.weight, layer.bias = torch.nn.Parameter(one.weight), torch.nn.Parameter(one.bias)  # type: ignore[arg-type]
                self.layers[one.output] = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        values = dict(zip(self.description.inputs, inputs, strict=True))
        for one in self.description.operations:
            given = [values[name] for name in one.inputs]
            if one.kind == "linear":
                made = self.layers[one.output](given[0])
                values[one.output] = functional.relu(made, inplace=True) if one.function == "relu" else made
            elif one.kind == "concat":
                values[one.output] = torch.cat(given, 1)
            else:
                values[one.output] = torch.addcmul(given[2], given[0], given[1])
        return torch.sigmoid(values[self.description.outputs[0].value])


def torch_float32(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    return torch.inference_mode()(TorchPart(description).eval())


def torch_prepacked(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    """oneDNN through torch, weights reordered once and the function fused."""
    packed = {
        one.output: torch.ops.mkldnn._reorder_linear_weight(one.weight, 64)
        for one in description.operations
        if one.kind == "linear"
    }

    @torch.inference_mode()
    def run(*inputs: Tensor) -> Tensor:
        values = dict(zip(description.inputs, inputs, strict=True))
        for one in description.operations:
            given = [values[name] for name in one.inputs]
            if one.kind == "linear":
                values[one.output] = torch.ops.mkldnn._linear_pointwise(
                    given[0], packed[one.output], one.bias, one.function, [], ""
                )
            elif one.kind == "concat":
                values[one.output] = torch.cat(given, 1)
            else:
                values[one.output] = torch.addcmul(given[2], given[0], given[1])
        return torch.sigmoid(values[description.outputs[0].value])

    return run


def torchao_int8(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    """Dynamic activations, weights by output, compiled: eager mode is many times slower."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    module = TorchPart(description).eval()
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    compiled = torch.compile(module, dynamic=True)
    run = torch.no_grad()(compiled)
    run(*calibration[0])
    return run


def onnx_model(description: DenseDescription) -> Any:
    """The same operations as ONNX has them."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = [], []
    for one in description.operations:
        if one.kind == "linear":
            # MatMul and Add, which every quantiser knows.
            weights.append(numpy_helper.from_array(one.weight.T.contiguous().numpy(), f"{one.output}.weight"))  # type: ignore[union-attr]
            weights.append(numpy_helper.from_array(one.bias.numpy(), f"{one.output}.bias"))  # type: ignore[union-attr]
            nodes.append(
                helper.make_node("MatMul", [one.inputs[0], f"{one.output}.weight"], [f"{one.output}.product"])
            )
            last = f"{one.output}.sum" if one.function == "relu" else one.output
            nodes.append(helper.make_node("Add", [f"{one.output}.product", f"{one.output}.bias"], [last]))
            if one.function == "relu":
                nodes.append(helper.make_node("Relu", [last], [one.output]))
        elif one.kind == "concat":
            nodes.append(helper.make_node("Concat", list(one.inputs), [one.output], axis=1))
        else:
            nodes.append(helper.make_node("Mul", list(one.inputs[:2]), [f"{one.output}.product"]))
            nodes.append(helper.make_node("Add", [f"{one.output}.product", one.inputs[2]], [one.output]))
    nodes.append(helper.make_node("Sigmoid", [description.outputs[0].value], ["score"]))
    for number, node in enumerate(nodes):
        node.name = f"{node.op_type}{number}"
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", columns])
        for name, columns in description.inputs.items()
    ]
    outputs = [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1])]
    graph = helper.make_graph(nodes, "dense", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _session(content: bytes | str, description: DenseDescription, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin between calls would take the processor from the other candidates.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = list(description.inputs)
    return lambda *inputs: session.run(
        None, {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
    )[0]


def onnxruntime_float32(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    return _session(onnx_model(description).SerializeToString(), description, threads)


def _quantised(description: DenseDescription, threads: int, calibration: Calibration | None) -> Runner:
    import onnx
    from onnxruntime import quantization

    reduced = "avx512vnni" not in _simd()
    with tempfile.TemporaryDirectory() as folder:
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx_model(description), plain)
        if calibration is None:
            quantization.quantize_dynamic(
                plain,
                made,
                per_channel=True,
                reduce_range=reduced,
                weight_type=quantization.QuantType.QInt8,
            )
        else:
            names = list(description.inputs)

            class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
                def __init__(self) -> None:
                    self.left = iter(calibration)

                def get_next(self) -> dict[str, Any] | None:
                    one = next(self.left, None)
                    return None if one is None else {n: t.numpy() for n, t in zip(names, one, strict=True)}

            quantization.quantize_static(
                plain,
                made,
                Reader(),
                per_channel=True,
                reduce_range=reduced,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                op_types_to_quantize=["MatMul"],
            )
        return _session(str(made), description, threads)


def _simd() -> str:
    from megalith.ops import native

    return native.simd_level()


def onnxruntime_dynamic(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    return _quantised(description, threads, None)


def onnxruntime_static(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    return _quantised(description, threads, calibration)


def _openvino(model: Any, description: DenseDescription, threads: int) -> Runner:
    import openvino

    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    )
    request, names = compiled.create_infer_request(), list(description.inputs)
    return lambda *inputs: request.infer(
        {name: one.numpy() for name, one in zip(names, inputs, strict=True)}, share_inputs=True
    )[0]


def _read_openvino(description: DenseDescription) -> Any:
    import openvino

    return openvino.Core().read_model(onnx_model(description).SerializeToString())


def openvino_float32(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    return _openvino(_read_openvino(description), description, threads)


def openvino_int8(description: DenseDescription, threads: int, calibration: Calibration) -> Runner:
    import nncf

    names = list(description.inputs)
    data = nncf.Dataset(
        calibration, lambda one: {name: tensor.numpy() for name, tensor in zip(names, one, strict=True)}
    )
    model = nncf.quantize(_read_openvino(description), data, subset_size=len(calibration))
    return _openvino(model, description, threads)


PEERS: dict[str, Callable[[DenseDescription, int, Calibration], Runner]] = {
    "torch float32": torch_float32,
    "torch float32 prepacked": torch_prepacked,
    "onnxruntime float32": onnxruntime_float32,
    "onnxruntime int8 dynamic": onnxruntime_dynamic,
    "onnxruntime int8 static": onnxruntime_static,
    "openvino float32": openvino_float32,
    "openvino int8 static": openvino_int8,
    "torchao int8 dynamic": torchao_int8,
}
SLOW_PEERS = ("torchao int8 dynamic",)
