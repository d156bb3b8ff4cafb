"""Seconds of a layer's operators on a device, and of the traffic among the devices that share the layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.cost.calibration import Calibration
from megalith.cost.memory import gradient_bytes
from megalith.cost.operators import AttentionShape, flash_attention_seconds, gemm_seconds, stream_seconds
from megalith.explore.workload import Operators
from megalith.hardware.cluster import Device


@dataclass(frozen=True, slots=True)
class Work:
    """Compute seconds of one micro-batch."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0
    core: float = 0.0
    """Forward of the attention's core: what selective recompute does again."""
    streaming: float = 0.0
    """Of all of these, seconds that memory bandwidth bounds."""
    attention: float = 0.0
    """Forward of the attention's core by flash: context-parallel traffic hides behind it."""

    @property
    def total(self) -> float:
        return self.forward + self.backward_input + self.backward_weight


@lru_cache(maxsize=16384)
def work_of(operators: Operators, device: Device, constants: Calibration, precision: str) -> Work:
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
    for entry in operators.passes:
        launch = entry.kernels * constants.kernel_seconds
        there = stream_seconds(device, constants, entry.forward_bytes) + (
            launch if entry.forward_bytes else 0
        )
        back = stream_seconds(device, constants, entry.backward_bytes) + launch
        forward += there
        backward_input += back
        streaming += there + back
        if entry.core:
            core += there
    if operators.flash:
        flash = operators.flash
        shape = AttentionShape(flash.heads, flash.queries, flash.keys, flash.head_dim)
        attention = flash_attention_seconds(device, constants, precision, shape)
        forward += attention
        backward_input += flash_attention_seconds(device, constants, precision, shape, backward=True)
    return Work(forward, backward_input, backward_weight, core, streaming, attention)
