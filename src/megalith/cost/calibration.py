"""The fitted constants of a device: its own, else its generation's, over the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from megalith.core.config import load_yaml
from megalith.hardware.cluster import Device

_FILE = Path(__file__).parent / "calibration.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The fitted constants of one device; calibration.yaml says what each is.

    Compared by identity: caches of the cost functions have it in their keys, and thirty floats a lookup would
    take longer than what they keep.
    """

    gemm_fraction: float
    gemm_fraction_fp8: float
    gemm_fraction_fp4: float
    gemm_half_depth: float
    attention_fraction: float
    exponential_depth: float
    power_watts: float
    memory_fraction: float
    kernel_seconds: float
    launch_seconds: float
    inside_fraction: float
    inside_rank_exponent: float
    between_fraction: float
    overlap: float
    scale_loss: float
    transfer_seconds: float
    micro_batch_seconds: float
    step_seconds: float
    line_bytes: float
    repeat_share: float
    id_bytes: float
    update_id_bytes: float
    vector_factor: float
    column_wise_factor: float
    column_wise_seconds: float
    update_repeat_share: float
    update_vector_factor: float
    route_id_bytes: float
    piece_factor: float
    row_factor: float
    copied_seconds: float
    copied_id_bytes: float
    copied_factor: float
    written_factor: float
    added_factor: float


@lru_cache(maxsize=64)
def calibration(device: Device) -> Calibration:
    """The constants of a device; every cost function takes them."""
    entries = _entries()
    figures = {
        **entries["default"],
        **entries.get(device.generation, {}),
        **entries.get(device.name, {}),
    }
    return Calibration(**figures)


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, float]]:
    return {
        name: {key: float(value) for key, value in figures.items()}
        for name, figures in load_yaml(_FILE).items()
    }
