"""Do predicted steps rank real plans in the right order? Random plans, run on processes of this machine.

Plans take turns (lookup, exchange, backward with updates, on gloo, one thread each), so that a slow moment of
the machine falls on all; a turn takes as long as its slowest rank. What counts is the order, so the
correlation is Spearman's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megalith.bench.runner import result
from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.probe import probe
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.planner.predict import predict_step
from megalith.sharding.planner.statistics import TableStatistics, zipf_statistics

BATCH = 1024
SPEARMAN = 0.9
"""What is asked of it."""
_SHAPES = (
    (50_000, 64, 1),
    (25_000, 32, 20),
    (20_000, 128, 2),
    (2_000, 16, 1),
    (40_000, 48, 8),
    (8_000, 96, 1),
)
"""Rows, columns, ids a sample."""
_SKEW = 1.05
_STEPS = 3
"""Of a turn."""


def bench_ranking(
    ranks: int = 2,
    plans: int = 20,
    repeats: int = 5,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Predicts and measures `plans` random plans on `ranks` processes."""
    import torch.multiprocessing

    tables, traffic = ranked_tables()
    drawn = random_plans(tables, ranks, plans, seed)
    cluster = _this_machine()
    predicted = [
        predict_step(tables, plan, cluster, global_batch=BATCH, statistics=traffic) for plan in drawn
    ]
    say(f"running {plans} plans on {ranks} processes")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (folder, tables, drawn, repeats), ranks)
        seconds = np.load(Path(folder) / "seconds.npy")
    measured = np.median(seconds, axis=0)
    expected = np.array([one["step_seconds"] for one in predicted])
    results = {
        "spearman": spearman(expected, measured),
        "asked": SPEARMAN,
        "plans": [
            {
                "kinds": [placement.kind for placement in plan.placements],
                "predicted": one,
                "seconds": float(found),
            }
            for plan, one, found in zip(drawn, predicted, measured, strict=True)
        ],
    }
    return result(
        "plan-ranking", {"ranks": ranks, "plans": plans, "batch": BATCH, "seed": seed}, results, None
    )


def ranked_tables() -> tuple[list[TableSpec], dict[str, TableStatistics]]:
    tables = [
        TableSpec(name=f"t{number}", rows=rows, dim=dim, features=(f"f{number}",))
        for number, (rows, dim, _) in enumerate(_SHAPES)
    ]
    traffic = {
        table.name: zipf_statistics(table.rows, float(length), _SKEW)
        for table, (_, _, length) in zip(tables, _SHAPES, strict=True)
    }
    return tables, traffic


def random_plans(tables: list[TableSpec], ranks: int, count: int, seed: int) -> list[ShardingPlan]:
    """Plans of all kinds that need no nodes, good and bad ones: each has a favourite worker and a favourite
    kind."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        favourite, bias = int(draw.integers(ranks)), float(draw.uniform(0, 1))
        kinds = ["table_wise", "row_wise", "column_wise", "data_parallel"]
        likely = draw.dirichlet(np.array([2.0, 0.7, 0.7, 0.4]))
        placements = []
        for table in tables:
            kind = str(draw.choice(kinds, p=likely))
            first = favourite if draw.random() < bias else int(draw.integers(ranks))
            placements.append(_placement(table, kind, ranks, first))
        found.append(ShardingPlan(world_size=ranks, workers_per_node=ranks, placements=tuple(placements)))
    return found


def spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Correlation of ranks.

    >>> spearman(np.array([1.0, 2, 3]), np.array([10.0, 30, 20]))
    0.5
    """
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _placement(table: TableSpec, kind: str, ranks: int, first: int) -> Placement:
    rows, columns = (0, table.rows), (0, table.dim)
    workers = [(first + place) % ranks for place in range(ranks)]
    if kind == "table_wise":
        cells = [(rows, columns)]
    elif kind == "data_parallel":
        cells = [(rows, columns)] * ranks
    elif kind == "row_wise":
        edges = np.linspace(0, table.rows, ranks + 1).astype(int).tolist()
        cells = [((begin, end), columns) for begin, end in pairwise(edges)]
    else:
        edges = np.linspace(0, table.dim, ranks + 1).astype(int).tolist()
        cells = [(rows, (begin, end)) for begin, end in pairwise(edges)]
    shards = [
        {"worker": worker, "rows": cell[0], "columns": cell[1]}
        for worker, cell in zip(workers, cells, strict=False)
    ]
    return Placement.model_validate(
        {"table": table.name, "kind": kind, "shards": [Shard.model_validate(one) for one in shards]}
    )


def _this_machine() -> Cluster:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        probe(seconds=0.3).write(path)
        return catalog(path).cluster("this-machine")


def _rank(rank: int, folder: str, tables: list[TableSpec], plans: list[ShardingPlan], repeats: int) -> None:
    """One process: all plans in turns; rank 0 writes the slowest rank's seconds."""
    import torch
    import torch.distributed as dist

    from megalith.embeddings.optimizers import RowWiseAdaGrad
    from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

    torch.set_num_threads(1)
    ranks = plans[0].world_size
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    values, offsets = _ids(BATCH // ranks, rank)
    sides = [ShardedEmbeddingCollection(tables, plan, RowWiseAdaGrad(lr=0.01)) for plan in plans]
    ids, edges = torch.from_numpy(values), torch.from_numpy(offsets)
    seconds = np.zeros((repeats, len(plans)))
    for turn in range(-1, repeats):
        for number, side in enumerate(sides):
            dist.barrier()
            begin = perf_counter()
            for _ in range(_STEPS):
                out = side(ids, edges)
                out.backward(torch.ones_like(out))
            taken = torch.tensor([perf_counter() - begin])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if turn >= 0:
                seconds[turn, number] = float(taken) / _STEPS
    if rank == 0:
        np.save(Path(folder) / "seconds.npy", seconds)
    dist.barrier()
    dist.destroy_process_group()


def _ids(batch: int, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Zipf ids, hot rows first, feature after feature."""
    draw = np.random.default_rng(rank)
    pieces, lengths = [], []
    for rows, _, length in _SHAPES:
        shares = np.arange(1, rows + 1, dtype=np.float64) ** -_SKEW
        pieces.append(draw.choice(rows, batch * length, p=shares / shares.sum()))
        lengths.append(np.full(batch, length))
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return np.concatenate(pieces).astype(np.int64), offsets.astype(np.int64)
