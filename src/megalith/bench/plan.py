"""How good and how quick the planner is, on generated sets of tables.

Sets are drawn as production models are described: sizes over many powers of ten, widths of any number, and
pooling lengths that differ somewhat (`usual_tables`) or by orders of magnitude (`skewed_tables`). The same
seed gives the same set.
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
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.statistics import TableStatistics, zipf_statistics

Drawn = tuple[list[TableSpec], dict[str, TableStatistics]]
LIMITS = {"seconds": 10.0, "gap": 0.02, "imbalance_reduction": 0.2}
"""What is asked of it, the first two for 1,000 tables on 128 workers."""
DIMS = (16, 24, 32, 50, 64, 93, 96, 128, 192, 256)
ALGORITHMS = (
    ("greedy", "greedy", False),
    ("karmarkar_karp", "karmarkar_karp", False),
    ("greedy + local search", "greedy", True),
    ("best", "best", True),
)
"""What a plan is made by: its name, where it starts, and whether local search follows."""
SHAPES = ((1000, 128, 65536), (100, 16, 16384), (26, 4, 2048))
"""Tables, workers of ZionEX, global batch."""


def usual_tables(count: int, seed: int = 0) -> Drawn:
    """Tables like those of Neo's model A (arXiv 2104.05158: about 1,000, mean width 93, mean pooling 15):
    pooling lengths log-normal with median 11 and a standard deviation of 0.8 in the logarithm."""
    return _drawn(count, seed, median_length=11.0, deviation=0.8)


def skewed_tables(count: int, seed: int = 0) -> Drawn:
    """A harder set: pooling lengths with median 2 and a standard deviation of 1.4 in the logarithm, so that a
    few tables have most of the lookups while vectors of all tables travel alike."""
    return _drawn(count, seed, median_length=2.0, deviation=1.4)


def _drawn(count: int, seed: int, median_length: float, deviation: float) -> Drawn:
    """Tables and their statistics: log-normal rows (median 100,000, up to 200 million) and pooling lengths
    (0.2 to 200), widths from `DIMS`, Zipf exponents of 0.6 to 1.3, every fourth with hashed ids."""
    draw = np.random.default_rng(seed)
    rows = np.clip(np.exp(draw.normal(np.log(1e5), 2.5, count)), 10, 2e8).astype(np.int64)
    lengths = np.clip(np.exp(draw.normal(np.log(median_length), deviation, count)), 0.2, 200.0)
    dims = draw.choice(DIMS, count)
    skews = draw.uniform(0.6, 1.3, count)
    tables = [
        TableSpec(name=f"t{number}", rows=int(rows[number]), dim=int(dims[number]), features=(f"f{number}",))
        for number in range(count)
    ]
    statistics = {
        table.name: zipf_statistics(table.rows, float(lengths[number]), float(skews[number]), number % 4 != 3)
        for number, table in enumerate(tables)
    }
    return tables, statistics


SETS: dict[str, Callable[[int, int], Drawn]] = {"usual": usual_tables, "skewed": skewed_tables}


def bench_plan(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    hardware: str = "zionex",
    seeds: int = 2,
    optimizers: Sequence[str] = ("rowwise_adagrad", "adagrad"),
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Plans sets of tables by greedy alone and by the best of all; the first of each kind by every
    algorithm, which takes a minute and a half for 1,000 tables."""
    measured = []
    for tables, workers, batch in shapes:
        for kind, draw in SETS.items():
            for optimizer in optimizers:
                for seed in range(seeds):
                    say(f"{kind}: {tables} tables on {workers} workers, {optimizer}, seed {seed}")
                    described = {
                        "set": kind,
                        "tables": tables,
                        "workers": workers,
                        "global_batch": batch,
                        "optimizer": optimizer,
                        "seed": seed,
                    }
                    chosen = ALGORITHMS if seed == 0 else (ALGORITHMS[0], ALGORITHMS[-1])
                    plans = _plans(draw(tables, seed), workers, batch, hardware, optimizer, chosen)
                    measured.append({**described, "plans": plans})
    settings = {
        "shapes": [list(shape) for shape in shapes],
        "hardware": hardware,
        "seeds": seeds,
        "optimizers": list(optimizers),
    }
    return result("plan", settings, {"limits": LIMITS, "measured": measured}, None)


def _plans(
    drawn: Drawn,
    workers: int,
    batch: int,
    hardware: str,
    optimizer: str,
    algorithms: Sequence[tuple[str, str, bool]],
) -> dict[str, Any]:
    tables, statistics = drawn
    cluster = catalog().cluster(hardware)
    plans = {}
    for name, algorithm, improve in algorithms:
        start, cpu_start = time.perf_counter(), time.process_time()
        plan = make_plan(
            tables,
            cluster,
            world_size=workers,
            global_batch=batch,
            statistics=statistics,
            optimizer=optimizer,
            search=SearchSettings(algorithm=algorithm, improve=improve),
        )
        plans[name] = _figures(plan, time.perf_counter() - start, time.process_time() - cpu_start)
    return plans


def _figures(plan: ShardingPlan, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    keys = ("step_seconds", "lower_bound_seconds", "gap", "imbalance", "algorithm", "bound_by")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        **{key: getattr(plan.estimate, key) for key in keys},
    }
