"""Plans that flags are written of, on two buildings of 64 H100."""

from __future__ import annotations

from typing import Any

from megalith.explore.job import Job
from megalith.explore.load import load_job
from megalith.explore.prediction import Prediction

TWO_BUILDINGS = {
    "name": "two",
    "device": "h100-80g",
    "levels": [
        {"name": "node", "count": 8, "link": "nvlink4"},
        {"name": "zone", "count": 8, "link": "roce-400x8"},
        {"name": "campus", "count": 2, "link": "wan-cross-campus"},
    ],
}

PLANS: dict[str, tuple[str | dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "interleaved": ("gpt3-175b", {"tp": 8, "pp": 8, "vpp": 3, "dp": 2}, {"schedule": "interleaved"}),
    "cut": (
        "gpt3-175b",
        {"tp": 8, "pp": 8, "dp": 2, "sharding": "zero1", "placement": ["tp", "pp:4", "dp", "pp:2"]},
        {"recompute": "full", "precision": "fp16"},
    ),
    "context": (
        "llama3-70b",
        {"tp": 4, "cp": 2, "pp": 4, "dp": 4, "sharding": "zero3"},
        {"precision": "fp8"},
    ),
    "hybrid": (
        "llama3-8b",
        {"dp": 128, "sharding": "hybrid", "shard_within": "campus", "global_batch": 256},
        {"recompute": "selective"},
    ),
    "uneven": (
        "llama3-70b",
        {"tp": 8, "pp": 8, "dp": 2, "placement": ["tp", "pp", "dp"], "layers_per_stage": [9, *[10] * 6, 11]},
        {"overlap": False},
    ),
    "breadth-first": (
        "llama3-70b",
        {"tp": 8, "pp": 8, "vpp": 2, "dp": 2},
        {"schedule": "breadth-first", "compression": "bf16"},
    ),
    "zero-bubble": ("llama3-70b", {"tp": 8, "pp": 8, "dp": 2}, {"schedule": "zb-h1", "local_steps": 10}),
    "latent": (
        "deepseek-v3",
        {"pp": 8, "dp": 16, "ep": 16, "sharding": "zero1", "layers_per_stage": [7, *[8] * 6, 6]},
        {"precision": "fp8"},
    ),
    "experts": (
        "mixtral-8x22b",
        {"tp": 4, "cp": 2, "pp": 4, "dp": 4, "ep": 8, "vpp": 2, "sharding": "zero2"},
        {"schedule": "interleaved"},
    ),
    "folded": (
        "qwen3-235b-a22b",
        {"tp": 2, "pp": 8, "dp": 8, "ep": 16, "layers_per_stage": [11, *[12] * 6, 11], "sharding": "zero1"},
        {"tensor_overlap": "ring"},
    ),
    "today": (
        {"base": "gpt-oss-120b", "mtp_layers": 1},
        {"cp": 2, "pp": 4, "dp": 16, "ep": 16, "context_exchange": "all-to-all", "sharding": "zero1"},
        {"precision": "fp8"},
    ),
    "counted": (
        "llama3-405b",
        {"tp": 8, "pp": 8, "vpp": 2, "dp": 2, "embedding_as_layer": True, "head_as_layer": True},
        {"schedule": "interleaved"},
    ),
}


def prediction(micro_batch: int = 1) -> Prediction:
    """A prediction to write flags of."""
    return Prediction(
        step_seconds=10.0,
        model_tflops_per_gpu=400.0,
        hardware_tflops_per_gpu=400.0,
        mfu=0.4,
        memory_bytes_per_device=7e10,
        fits=True,
        breakdown={"compute": 10.0},
        memory={"weights": 7e10},
        level_bytes={"node": 1.0},
        bound_by="compute",
        micro_batch=micro_batch,
        recompute="none",
        uncertainty=0.05,
    )


def job_of(name: str, **changes: Any) -> Job:
    """A plan by name, with other sections in place of its own."""
    model, parallel, training = PLANS[name]
    parallel = {"global_batch": 64, "micro_batch": 1, **parallel}
    job = {"name": name, "model": model, "cluster": TWO_BUILDINGS, "parallel": parallel, "training": training}
    return load_job({**job, **changes})
