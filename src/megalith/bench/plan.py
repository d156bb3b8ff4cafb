"""How good and how quick the planner is, on generated sets of tables.

`skewed_tables` draws what production models are said to have: sizes over many powers of ten, a few tables
with most of the lookups, widths of any number. The same seed gives the same set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megalith.bench.runner import result
from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner import make_plan
from megalith.sharding.planner.statistics import TableStatistics, zipf_statistics

LIMITS = {"seconds": 10.0, "gap": 0.02, "imbalance_reduction": 0.2}
"""What is asked of it, the first two for 1,000 tables on 128 workers."""
DIMS = (16, 24, 32, 50, 64, 93, 96, 128, 192, 256)
SHAPES = ((1000, 128, 65536), (26, 4, 2048), (100, 16, 16384))
"""Tables, workers of ZionEX, global batch."""


def skewed_tables(count: int, seed: int = 0) -> tuple[list[TableSpec], dict[str, TableStatistics]]:
    """Tables and their traffic: log-normal rows (median 100,000, up to 200 million) and pooling lengths
    (median 2, up to 200), widths from `DIMS`, Zipf exponents of 0.6 to 1.3, every fourth with hashed ids."""
    draw = np.random.default_rng(seed)
    rows = np.clip(np.exp(draw.normal(np.log(1e5), 2.5, count)), 10, 2e8).astype(np.int64)
    lengths = np.clip(np.exp(draw.normal(np.log(2.0), 1.4, count)), 0.2, 200.0)
    dims = draw.choice(DIMS, count)
    skews = draw.uniform(0.6, 1.3, count)
    tables = [
        TableSpec(name=f"t{number}", rows=int(rows[number]), dim=int(dims[number]), features=(f"f{number}",))
        for number in range(count)
    ]
    traffic = {
        table.name: zipf_statistics(table.rows, float(lengths[number]), float(skews[number]), number % 4 != 3)
        for number, table in enumerate(tables)
    }
    return tables, traffic


def bench_plan(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    hardware: str = "zionex",
    seeds: int = 3,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Plans sets of tables by greedy alone, by each algorithm, and by the best of all."""
    measured = []
    for tables, workers, batch in shapes:
        for seed in range(seeds):
            say(f"{tables} tables on {workers} workers, seed {seed}")
            measured.append(
                {
                    "tables": tables,
                    "workers": workers,
                    "global_batch": batch,
                    "seed": seed,
                    "plans": _plans(tables, workers, batch, seed, hardware),
                }
            )
    settings = {"shapes": [list(shape) for shape in shapes], "hardware": hardware, "seeds": seeds}
    return result("plan", settings, {"limits": LIMITS, "measured": measured}, None)


def _plans(count: int, workers: int, batch: int, seed: int, hardware: str) -> dict[str, Any]:
    tables, traffic = skewed_tables(count, seed)
    cluster = catalog().cluster(hardware)
    found = {}
    for name, algorithm, improve in (
        ("greedy", "greedy", False),
        ("karmarkar_karp", "karmarkar_karp", False),
        ("greedy + local search", "greedy", True),
        ("best", "best", True),
    ):
        start = time.perf_counter()
        plan = make_plan(
            tables,
            cluster,
            world_size=workers,
            global_batch=batch,
            statistics=traffic,
            algorithm=algorithm,
            improve=improve,
        )
        found[name] = _figures(plan, time.perf_counter() - start)
    return found


def _figures(plan: ShardingPlan, seconds: float) -> dict[str, Any]:
    keys = ("step_seconds", "lower_bound_seconds", "gap", "imbalance", "algorithm", "bound_by")
    return {"seconds": seconds, **{key: plan.estimate[key] for key in keys}}
