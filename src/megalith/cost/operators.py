"""Seconds of one operator on one device: matrix products by tiles and waves, everything else by bytes.

A matrix product is cut into tiles that the multiprocessors compute in waves; a last wave that is
half empty costs as much as a full one, and a short inner dimension does not fill a tile's pipeline. Operators
that only move data take their bytes at the share of memory bandwidth that such kernels reach.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, hypot
from typing import NamedTuple

from megalith.cost.calibration import Calibration
from megalith.hardware.cluster import Device

# Tiles a library chooses among and how well a multiprocessor is used inside one: a larger tile reads each
# operand fewer times (cuBLAS's 256x128 and its smaller siblings).
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.8), (64, 128, 0.8), (64, 64, 0.65))

MLP_PEAK_SHARE = 0.5
"""Share of the reachable FLOP/s of MLPs whose layers are not given, of the widths such models have."""
BYTES_PER_ELEMENT = {
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "mxfp8": 33 / 32,
    "nvfp4": 9 / 16,
    "int8": 1,
    "int4": 0.5,
}
"""Scales of MXFP8 (a byte for 32 elements) and NVFP4 (a byte for 16) counted."""
QUANTISED = ("fp8", "mxfp8", "nvfp4")
"""Training precisions whose products of weights run narrower than the tensors between them."""
_UNITS = {"fp8": ("fp8",), "mxfp8": ("fp8",), "nvfp4": ("fp4", "fp8")}


def peak_flops(device: Device, precision: str) -> float:
    """FLOP/s of a type; a device without it computes in the next wider one."""
    for name in (*_UNITS.get(precision, (precision,)), "bf16", "fp16", "tf32", "fp32"):
        if name in device.flops:
            return device.flops[name]
    return max(device.flops.values())


def mlp_seconds(device: Device, constants: Calibration, precision: str, flops: float) -> float:
    """MLPs of which only the FLOPs are known."""
    return flops / (peak_flops(device, precision) * gemm_share(device, constants, precision) * MLP_PEAK_SHARE)


def gemm_share(device: Device, constants: Calibration, precision: str) -> float:
    """Share of `peak_flops` that large products of this precision reach."""
    if precision == "nvfp4" and "fp4" in device.flops:
        return constants.gemm_fraction_fp4
    if precision in QUANTISED and "fp8" in device.flops:
        return constants.gemm_fraction_fp8
    return constants.gemm_fraction


@lru_cache(maxsize=65536)
def gemm_seconds(
    device: Device,
    constants: Calibration,
    precision: str,
    rows: int,
    columns: int,
    depth: int,
    batch: int = 1,
    accumulated_bytes: int = 0,
) -> float:
    """[rows, depth] x [depth, columns], `batch` times in one kernel.

    `accumulated_bytes` says that the result is added to what is there, in so many bytes an element.
    """
    peak = peak_flops(device, precision) * gemm_share(device, constants, precision)
    fill = depth / (depth + constants.gemm_half_depth)
    units = device.multiprocessors
    flops = 2.0 * rows * columns * depth * batch
    compute = flops / (peak * fill)
    if units:
        unit_flops = peak * fill / units
        compute = min(
            _waves(ceil(rows / high) * ceil(columns / wide) * batch, units)
            * (2.0 * high * wide * depth / (unit_flops * quality))
            for high, wide, quality in _TILES
        )
    element = BYTES_PER_ELEMENT.get(precision, 2)
    written = 2 * accumulated_bytes or element
    moved = batch * (element * (rows + columns) * depth + written * rows * columns)
    # Far from the ridge of the roofline one side hides the other; near it they add up in part.
    return hypot(compute, stream_seconds(device, constants, moved)) + constants.kernel_seconds


def _waves(tiles: int, units: int) -> float:
    """Waves of tiles. Past the first few the tail blurs, as tiles of a wave do not end together."""
    whole, rest = divmod(tiles, units)
    if not rest:
        return whole
    share = rest / units
    # Half of the empty slots of the last wave are lost once there are waves to blur it with, all if there are
    # none.
    return whole + share + (1 - share) / (1 + 0.5 * whole)


def stream_seconds(device: Device, constants: Calibration, moved_bytes: float) -> float:
    """Reading and writing `moved_bytes` in the device's first memory."""
    return moved_bytes / (device.bytes_per_second * constants.memory_fraction)


class AttentionShape(NamedTuple):
    """One attention: its heads over the whole batch, and the sizes of each."""

    heads: int
    queries: int
    keys: int
    head_dim: int


def flash_attention_seconds(
    device: Device,
    constants: Calibration,
    precision: str,
    shape: AttentionShape,
    *,
    causal: bool = True,
    backward: bool = False,
) -> float:
    """One fused attention; the backward pass does 2.5 times the products."""
    heads, queries, keys, head_dim = shape
    flops = 4.0 * heads * queries * keys * head_dim * (0.5 if causal else 1.0)
    narrow = "bf16" if precision in QUANTISED else precision
    peak = peak_flops(device, narrow) * constants.attention_fraction
    # The exponential of a score takes as long as its products over so many columns of a head; heads of 128
    # are the measure.
    depth = constants.exponential_depth
    fill = head_dim / (head_dim + depth) / (128 / (128 + depth))
    return flops * (2.5 / 0.85 if backward else 1.0) / (peak * min(fill, 1.1)) + constants.kernel_seconds
