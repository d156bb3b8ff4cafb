"""Searches of 512 GPUs until nothing is left: whether the usual budget's plan or its bound is loose.

    .venv/bin/python benchmarks/explore_exhaustive.py --out benchmarks/results/explore-exhaustive.json

The clusters are the suite's largest ones made small: four buildings, two of them, two regions. Minutes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from megalith.bench.runner import result, save_result
from megalith.explore.load import load_job
from megalith.explore.search.cluster_search import BUDGET, search_job

BUILDINGS = [
    {"name": "node", "count": 8, "link": "nvlink4"},
    {"name": "zone", "count": 8, "link": "roce-400x8"},
    {"name": "building", "count": 2, "link": "spine-204t", "oversubscription": 2},
    {"name": "campus", "count": 4, "link": "wan-campus"},
]
REGIONS = [
    {"name": "node", "count": 8, "link": "nvlink4"},
    {"name": "zone", "count": 32, "link": "roce-400x8"},
    {"name": "world", "count": 2, "link": "wan-1000km", "gigabits_per_second": 800},
]
JOBS: dict[str, dict[str, Any]] = {
    "1t on four buildings": {
        "model": "gpt-1t",
        "levels": BUILDINGS,
        "batch": 64,
        "fixed": {"tp": 8, "cp": 1},
    },
    "405b on four buildings": {
        "model": "llama3-405b",
        "levels": BUILDINGS,
        "batch": 128,
        "fixed": {"tp": 8, "cp": 1},
    },
    "70b on two regions": {
        "model": "llama3-70b",
        "levels": REGIONS,
        "batch": 256,
        "fixed": {"tp": 8, "cp": 1},
    },
}


def main() -> None:
    """Searches each job with the usual budget, then without one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--budget", type=float, default=40_000.0, help="of the search that is to end by itself"
    )
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in arguments.jobs:
        asked = JOBS[name]
        job = load_job(
            {
                "name": name,
                "model": asked["model"],
                "cluster": {"device": "h100-80g", "levels": asked["levels"]},
                "global_batch": asked["batch"],
                "constraints": {"fixed": asked["fixed"]},
            }
        )
        found: dict[str, Any] = {}
        for kind, budget in (("usual", float(BUDGET)), ("exhaustive", arguments.budget)):
            begin = time.monotonic()
            space = search_job(job, workers=2, budget=budget)
            best = space.plans[0].prediction.step_seconds
            found[kind] = {
                "step_seconds": best,
                "lower_bound_seconds": space.lower_bound_seconds,
                "gap": 1 - space.lower_bound_seconds / best,
                "simulated": space.examined,
                "ruled_out": space.pruned,
                "left": space.unexamined,
                "seconds": round(time.monotonic() - begin, 1),
            }
            print(name, kind, found[kind], flush=True)
        rows[name] = found
        save_result(arguments.out, result("explore-exhaustive", {"budget": BUDGET}, rows, Path()))


if __name__ == "__main__":
    main()
