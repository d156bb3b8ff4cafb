"""The example of the design as a job, and its prediction with some settings changed."""

from __future__ import annotations

from typing import Any

from megalith.explore import Prediction, load_job, predict

# The example of the design: GPT-3 175B of Korthikanti et al. (13.75 s measured).
EXAMPLE: dict[str, Any] = {
    "model": {
        "kind": "transformer",
        "hidden": 12288,
        "layers": 96,
        "heads": 96,
        "kv_heads": 96,
        "ffn": 49152,
        "gated": False,
        "vocab": 51200,
        "seq": 2048,
        "experts": 0,
        "experts_per_token": 0,
    },
    "cluster": {
        "device": "a100-80g",
        "levels": [
            {"name": "node", "count": 8, "link": "nvlink3"},
            {"name": "zone", "count": 64, "link": "ib-hdr200x8"},
        ],
    },
    "parallel": {
        "tp": 8,
        "cp": 1,
        "ep": 1,
        "pp": 8,
        "vpp": 3,
        "dp": 1,
        "sharding": "none",
        "micro_batch": 1,
        "global_batch": 64,
        "sequence_parallel": True,
    },
    "training": {"precision": "fp16", "recompute": "selective", "schedule": "interleaved", "overlap": True},
}


def ask(*overrides: str, **keys: Any) -> Prediction:
    """The prediction of the example with these settings."""
    return predict(load_job({**EXAMPLE, **keys}, overrides))
