"""Seconds of a layer's operators on one device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.cost.calibration import Calibration
from megalith.cost.memory import gradient_bytes
from megalith.cost.operators import AttentionShape, flash_attention_seconds, gemm_seconds, stream_seconds
from megalith.explore.workload import Operators
from megalith.hardware.cluster import Device


@dataclass(frozen=True, slots=True)
class ComputeSeconds:
    """Seconds of one micro-batch on one device, communication not counted."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0
    core: float = 0.0
    """Forward of the attention's core: what selective recompute does again."""
    streaming: float = 0.0
    """Of all of these, seconds that memory bandwidth bounds."""
    attention: float = 0.0
    """Forward of the attention's core by flash: context-parallel traffic hides behind it."""


@lru_cache(maxsize=16384)
def compute_seconds(
    operators: Operators, device: Device, constants: Calibration, precision: str
) -> ComputeSeconds:
    """Forward and backward seconds of the operators of a layer."""
    forward = backward_input = backward_weight = core = streaming = attention = 0.0

    def gemm(rows: int, columns: int, depth: int, batch: int, accumulated: int = 0) -> float:
        return gemm_seconds(device, constants, precision, rows, columns, depth, batch, accumulated)

    for product in operators.products:
        rows, columns, depth, batch = product.rows, product.columns, product.depth, product.batch
        seconds = gemm(rows, columns, depth, batch)
        forward += seconds
        backward_input += gemm(rows, depth, columns, batch)
        if product.weights:
            # Added to the gradients of the micro-batches before, inside the kernel.
            backward_weight += gemm(depth, columns, rows, batch, gradient_bytes(precision))
        else:
            backward_input += gemm(depth, columns, rows, batch)
        if product.core:
            core += seconds
    for memory_pass in operators.passes:
        launch = memory_pass.kernels * constants.kernel_seconds
        seconds = stream_seconds(device, constants, memory_pass.forward_bytes) + (
            launch if memory_pass.forward_bytes else 0
        )
        backward_seconds = stream_seconds(device, constants, memory_pass.backward_bytes) + launch
        forward += seconds
        backward_input += backward_seconds
        streaming += seconds + backward_seconds
        if memory_pass.core:
            core += seconds
    if operators.flash:
        flash = operators.flash
        shape = AttentionShape(flash.heads, flash.queries, flash.keys, flash.head_dim)
        attention = flash_attention_seconds(device, constants, precision, shape)
        forward += attention
        backward_input += flash_attention_seconds(device, constants, precision, shape, backward=True)
    return ComputeSeconds(forward, backward_input, backward_weight, core, streaming, attention)
