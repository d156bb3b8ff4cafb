"""Seconds of a layer's operators on one device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.cost.calibration import Calibration
from megalith.cost.memory import gradient_bytes
from megalith.cost.operators import (
    QUANTISED,
    AttentionShape,
    flash_attention_seconds,
    gemm_seconds,
    stream_seconds,
)
from megalith.explore.workload import MatrixProduct, Operators
from megalith.hardware.cluster import Device

CAST_BYTES = {"fp8": (4.0, 4.0, 2.0), "mxfp8": (4.0, 4.0, 0.0), "nvfp4": (5.0, 7.0, 2.0)}
"""Bytes that quantising moves for an element of a product's input going forward, of its output's gradient,
and of the input again going backward. FP8 reads two bytes and writes one, and one more for the transposed
copy; MXFP8 writes both ways of blocks at once; NVFP4 rotates what its weight gradients read (Hadamard) and
writes that too."""


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
    products: tuple[tuple[str, float], ...] = ()
    """Name -> forward seconds of each product that has weights, casts counted."""
    passes: tuple[tuple[str, float], ...] = ()
    """Name -> forward seconds of each pass over memory."""


@lru_cache(maxsize=16384)
def compute_seconds(
    operators: Operators, device: Device, constants: Calibration, precision: str
) -> ComputeSeconds:
    """Forward and backward seconds of the operators of a layer."""
    forward = backward_input = backward_weight = core = streaming = attention = 0.0
    products, passes = [], []
    for product in operators.products:
        seconds, cast = _product_seconds(product, device, constants, precision)
        forward += seconds[0]
        backward_input += seconds[1]
        backward_weight += seconds[2]
        streaming += cast
        if product.core:
            core += seconds[0]
        else:
            products.append((product.name, seconds[0]))
    for memory_pass in operators.passes:
        launch = memory_pass.kernels * constants.kernel_seconds
        ahead = stream_seconds(device, constants, memory_pass.forward_bytes) + (
            launch if memory_pass.forward_bytes else 0
        )
        behind = stream_seconds(device, constants, memory_pass.backward_bytes) + launch
        forward += ahead
        backward_input += behind
        streaming += ahead + behind
        passes.append((memory_pass.name, ahead))
        if memory_pass.core:
            core += ahead
    if operators.flash:
        flash = operators.flash
        shape = AttentionShape(flash.heads, flash.queries, flash.keys, flash.head_dim)
        attention = flash_attention_seconds(device, constants, precision, shape)
        forward += attention
        backward_input += flash_attention_seconds(device, constants, precision, shape, backward=True)
    return ComputeSeconds(
        forward, backward_input, backward_weight, core, streaming, attention, tuple(products), tuple(passes)
    )


def _product_seconds(
    product: MatrixProduct, device: Device, constants: Calibration, precision: str
) -> tuple[tuple[float, float, float], float]:
    """Forward, input-gradient and weight-gradient seconds of a product, and those of them that are casts."""
    rows, columns, depth, batch = product.rows, product.columns, product.depth, product.batch
    narrow = precision if product.quantised or precision not in QUANTISED else "bf16"

    def gemm(high: int, wide: int, deep: int, accumulated: int = 0) -> float:
        seconds = gemm_seconds(device, constants, narrow, high, wide, deep, batch, accumulated)
        return launched(seconds)

    def launched(seconds: float) -> float:
        """A grouped product is launched expert by expert, each while the one before computes."""
        return max(seconds, batch * constants.launch_seconds) if product.grouped else seconds

    ahead, behind = gemm(rows, columns, depth), gemm(rows, depth, columns)
    if not product.weights:
        return (ahead, behind + gemm(depth, columns, rows), 0.0), 0.0
    # Added to the gradients of the micro-batches before, inside the kernel.
    weight = gemm(depth, columns, rows, gradient_bytes(precision))
    if narrow not in CAST_BYTES:
        return (ahead, behind, weight), 0.0
    of_input, of_gradient, again = CAST_BYTES[narrow]
    forward_cast = stream_seconds(device, constants, of_input * batch * rows * depth)
    backward_cast = stream_seconds(device, constants, batch * rows * (of_gradient * columns + again * depth))
    forward_cast = launched(forward_cast + constants.kernel_seconds)
    backward_cast = launched(backward_cast + 2 * constants.kernel_seconds)
    return (ahead + forward_cast, behind + backward_cast, weight), forward_cast + backward_cast
