"""Jobs small enough that every plan can be predicted."""

from __future__ import annotations

from typing import Any

from megalith.explore.job import Job
from megalith.explore.load import load_job

DENSE = {"hidden": 2048, "layers": 8, "heads": 16, "ffn": 8192, "vocab": 32000, "seq": 2048}
SPARSE = {**DENSE, "experts": 8, "experts_per_token": 2, "expert_ffn": 2048}


def job(
    model: dict[str, Any] | None = None,
    counts: tuple[int, ...] = (2, 2, 2),
    links: tuple[str, ...] = ("nvlink4", "roce-400x8", "wan-cross-region"),
    batch: int = 8,
    **constraints: Any,
) -> Job:
    names = ("node", "building", "world")
    levels = [
        {"name": name, "count": count, "link": link}
        for name, count, link in zip(names, counts, links, strict=False)
    ]
    return load_job(
        {
            "name": "small",
            "model": model or DENSE,
            "cluster": {"device": "h100-80g", "levels": levels},
            "global_batch": batch,
            "constraints": constraints,
        }
    )
