"""What can run the dense part of a model on a CPU, each at its best settings: threads set, one stream, no
threads that spin while another candidate has its turn.

int8 is as each tool's users get it. onnxruntime: dynamic quantisation and static QDQ graphs, by channel, of
reduced range (7 bits: without VNNI 8 bits saturate). OpenVINO: the same QDQ graph. torchao: dynamic
activations, compiled.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from megalith.bench.serve.shapes import draw_request
from megalith.bench.serve.weights import ServedWeights, pooled

DenseRun = Callable[[Tensor, Tensor], Tensor]
"""Numbers [batch, numbers] and pooled vectors [batch, columns] to scores [batch, 1]."""

FLOAT_PEERS = ("torch", "onnxruntime", "openvino")
INT8_PEERS = ("onnxruntime-int8", "onnxruntime-int8-static", "openvino-int8", "torchao-int8")
DENSE_PEERS = (*FLOAT_PEERS, *INT8_PEERS)
_CALIBRATION_SAMPLES = 512


def make_dense(name: str, weights: ServedWeights, threads: int) -> DenseRun:
    """A dense part by the name of what runs it."""
    if name == "torch":
        return _torch(weights.model)
    if name == "torchao-int8":
        return _torchao(weights.model)
    from megalith.bench.serve.graphs import dense_graph

    graph = dense_graph(weights.shape, weights.layers)
    if name == "onnxruntime":
        return _onnxruntime(graph, threads)
    if name == "onnxruntime-int8":
        return _onnxruntime(dynamic_int8(graph), threads)
    if name == "onnxruntime-int8-static":
        return _onnxruntime(_static(graph, weights), threads)
    if name == "openvino-int8":
        return _openvino(_static(graph, weights), threads)
    return _openvino(graph, threads, precision="f32")


def session(graph: Any, threads: int) -> Any:
    """A session of onnxruntime at its best settings."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # Its threads spin while a request runs, and stop when it ends: the next turn is another's.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _torch(model: nn.Module) -> DenseRun:
    def run(dense: Tensor, embedded: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.sigmoid(model(dense, embedded)).unsqueeze(1)

    return run


def _torchao(model: nn.Module) -> DenseRun:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantised = _plain(copy.deepcopy(model))
    quantize_(quantised, Int8DynamicActivationInt8WeightConfig())
    compiled = torch.compile(quantised, dynamic=True)
    return _torch(compiled)  # type: ignore[arg-type]


def _plain(model: nn.Module) -> nn.Module:
    """The model with plain linear layers: torchao and the compiler know no others, and fuse the ReLU anew."""
    for name, child in list(model.named_children()):
        if type(child) is not nn.Linear and isinstance(child, nn.Linear):
            linear = nn.Linear(child.in_features, child.out_features, bias=child.bias is not None)
            linear.load_state_dict(child.state_dict())
            setattr(model, name, nn.Sequential(linear, nn.ReLU()))
        else:
            _plain(child)
    return model.requires_grad_(False).eval()


def _onnxruntime(graph: Any, threads: int) -> DenseRun:
    runtime = session(graph, threads)

    def run(dense: Tensor, embedded: Tensor) -> Tensor:
        given = {"dense": dense.numpy(), "embedded": embedded.numpy()}
        return torch.from_numpy(runtime.run(["score"], given)[0])

    return run


def _openvino(graph: Any, threads: int, precision: str | None = None) -> DenseRun:
    import openvino
    from openvino import properties

    core = openvino.Core()
    model = core.read_model(graph.SerializeToString())
    settings = {
        properties.hint.performance_mode(): properties.hint.PerformanceMode.LATENCY,
        properties.inference_num_threads(): threads,
        properties.num_streams(): 1,
    }
    if precision is not None:
        # By itself it takes bfloat16 where the processor has it.
        settings[properties.hint.inference_precision()] = precision
    request = core.compile_model(model, "CPU", settings).create_infer_request()

    def run(dense: Tensor, embedded: Tensor) -> Tensor:
        given = {"dense": dense.numpy(), "embedded": embedded.numpy()}
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return torch.from_numpy(found["score"])

    return run


def dynamic_int8(graph: Any) -> Any:
    """A graph whose layers are quantised by channel, with the range of activations found as it runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    return _quantised(
        graph,
        lambda source, target: quantize_dynamic(
            source, target, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        ),
    )


def _static(graph: Any, weights: ServedWeights) -> Any:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([_calibration(weights)])

        def get_next(self) -> Any:
            return next(self.batches, None)

    return _quantised(
        graph,
        lambda source, target: quantize_static(
            source,
            target,
            Samples(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
        ),
    )


def _calibration(weights: ServedWeights) -> dict[str, Any]:
    request = draw_request(weights.shape, _CALIBRATION_SAMPLES, seed=12345)
    return {"dense": request.dense.numpy(), "embedded": pooled(weights, request).numpy()}


def _quantised(graph: Any, quantise: Callable[[str, str], None]) -> Any:
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        source, target = (str(Path(folder) / name) for name in ("float32.onnx", "int8.onnx"))
        onnx.save(graph, source)
        # It advises on every graph.
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            quantise(source, target)
        finally:
            logging.disable(before)
        return onnx.load(target)
